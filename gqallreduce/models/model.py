"""The tensors of a model, and which of them are summed by one call: of one scheme, in one memory, as many as fit."""

from __future__ import annotations

from typing import NamedTuple

from gqallreduce import _kernels
from gqallreduce.coding.layout import Form

AT_ONCE_MOST = 1 << 20  # bytes of all buckets together, if there are several


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
    bucket
        the number of its Bucket.
    """

    name: str
    scheme: str
    form: Form
    nbytes: int
    device: str
    known: _kernels.KnownForms
    bucket: int = -1


class Bucket:
    """Tensors that one call sums, in the order in which a backward pass makes them.

    scheme, names, nbytes
        of its tensors.
    places
        where its tensors are in the order of the model.
    known
        by which plain arrays of their forms are known.
    """

    def __init__(self, tensors: list[Tensor], places: list[int]):
        self.tensors, self.scheme = tensors, tensors[0].scheme
        self.names = [tensor.name for tensor in tensors]
        self.nbytes = sum(tensor.nbytes for tensor in tensors)
        self.places = _kernels.Places(tuple(places))
        self.known = _kernels.KnownForms(tuple(tensor.form for tensor in tensors), True)


class Model:
    """All of them.

    tensors
        name -> Tensor, in the order of the model; a backward pass makes their gradients in the reverse order.
    buckets
        of at most `most` bytes, or of one tensor, in the order in which such a pass completes them.
    names
        of the tensors, in order.
    at_once
        does a step make the calls of its buckets one after the other, each finished before the next? That costs less
        than to start them, but nothing is sent while the next bucket is encoded.
    """

    def __init__(self, tensors: list[Tensor] | tuple = (), most: int = 0):
        self.buckets = _buckets_of(tensors, most)
        number_of = {name: number for number, bucket in enumerate(self.buckets) for name in bucket.names}
        self.tensors = {each.name: each._replace(bucket=number_of[each.name]) for each in tensors}
        self.names = tuple(self.tensors)
        self.at_once = len(self.buckets) == 1 or sum(bucket.nbytes for bucket in self.buckets) <= AT_ONCE_MOST

    def in_order(self, named: dict | list[tuple]) -> tuple | None:
        """The arrays of a dict, or of pairs (name, array), in the order of the model; None if not every tensor is named
        once."""
        arrays = _kernels.values_in_order(named, self.names)
        if arrays is not None:
            return arrays
        given = named if isinstance(named, dict) else dict(named)
        if len(given) < len(named) or given.keys() != self.tensors.keys():
            return None
        return tuple(given[name] for name in self.names)


def _buckets_of(tensors, most: int) -> list[Bucket]:
    filling: dict[tuple, list[Tensor]] = {}
    made: list[list[Tensor]] = []
    for tensor in reversed(tensors):
        alike = tensor.scheme, tensor.device
        bucket = filling.get(alike)
        if bucket is None or sum(each.nbytes for each in bucket) + tensor.nbytes > most:
            bucket = filling[alike] = []
            made.append(bucket)
        bucket.append(tensor)
    place = {tensor.name: number for number, tensor in enumerate(tensors)}
    made.sort(key=lambda bucket: place[bucket[-1].name], reverse=True)
    return [Bucket(each, [place[tensor.name] for tensor in each]) for each in made]
