"""Tensors that are summed by one call: of one scheme, in one memory, as many as fit."""

from __future__ import annotations

from typing import NamedTuple

from gqallreduce import _kernels
from gqallreduce.coding.layout import Form


class Tensor(NamedTuple):
    """What a model has of one gradient.

    name, scheme
        by which it is known, and summed.
    form
        shape, order and dtype.
    nbytes
        of its elements.
    device
        in words, where it is.
    known
        by which plain arrays of its form are known.
    """

    name: str
    scheme: str
    form: Form
    nbytes: int
    device: str
    known: _kernels.KnownForms


class Bucket(NamedTuple):
    """Tensors that one call sums, in the order in which a backward pass makes them."""

    tensors: tuple[Tensor, ...]

    @property
    def scheme(self) -> str:
        return self.tensors[0].scheme

    @property
    def names(self) -> list[str]:
        return [tensor.name for tensor in self.tensors]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def buckets_of(tensors: list[Tensor], most: int) -> list[Bucket]:
    """Buckets of at most so many bytes, or of one tensor.

    tensors
        in the order of the model; a backward pass makes their gradients in the reverse order.
    Buckets come in the order in which such a pass completes them.
    """
    filling: dict[tuple, list[Tensor]] = {}
    made: list[list[Tensor]] = []
    for tensor in reversed(tensors):
        alike = tensor.scheme, tensor.device
        bucket = filling.get(alike)
        if bucket is None or sum(each.nbytes for each in bucket) + tensor.nbytes > most:
            bucket = filling[alike] = []
            made.append(bucket)
        bucket.append(tensor)
    place = {tensor.name: number for number, tensor in enumerate(reversed(tensors))}
    return [Bucket(tuple(each)) for each in sorted(made, key=lambda bucket: place[bucket[-1].name])]
