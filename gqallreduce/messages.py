"""Values to the bytes of a message and back, by a codec alone: for tests, teaching and golden files. Needs no MPI.

Of an indirect codec the message holds all vectors that a rank of one would have summed, end to end.
"""

from __future__ import annotations

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding.codec import NOT_FINITE, Codec, RegionCodec
from gqallreduce.coding.indirect import ALL_ALIKE, ALONE, Own, Sum
from gqallreduce.coding.layout import Form, Region, blocks, columns, of
from gqallreduce.coding.preparing import Parts, Prepared, alone
from gqallreduce.errors import NonFiniteError, WireError
from gqallreduce.hashing import hash64


def encode(codec: Codec, x, seed: int, step: int) -> bytes:
    """What comes behind the header. NonFiniteError if a value is NaN or Inf, or (rank None) cannot be sent."""
    vector = np.ascontiguousarray(x, dtype=np.float32).reshape(-1)
    if not codec.indirect:
        return _encode(codec, vector, seed, step)
    if not np.isfinite(vector).all():
        raise NonFiniteError(0, None, int(np.argmax(~np.isfinite(vector))))
    messages = []

    def send(asked: Sum) -> None:
        messages.append(_encode(asked.codec, asked.values, seed, step, asked.origin))
        _decode(asked.codec, np.frombuffer(messages[-1], np.uint8), asked.values)

    _go_through(codec, np.shape(x), vector, seed, step, send)
    return b"".join(messages)


def decode(codec: Codec, data, shape: tuple[int, ...], seed: int, step: int) -> tuple[np.ndarray, int]:
    """(float32 vector of so many values, bytes that were read)."""
    size = Form(shape, "C", "float32").size
    if not codec.indirect:
        y = np.zeros(size, np.float32)
        return y, _decode(codec, data, y)
    at = 0

    def receive(asked: Sum) -> None:
        nonlocal at
        at += _decode(asked.codec, data[at:], asked.values)

    y = _go_through(codec, shape, np.zeros(size, np.float32), seed, step, receive)
    if not np.isfinite(y).all():
        raise WireError(f"{codec.name}: got numbers whose products leave float32")
    return y, at


class _OwnAlone(Own):
    """Values of one rank, without feedback or state."""

    rank, ranks, number, feedback, learned = 0, 1, 0, False, None

    def __init__(self, values, seed: int, step: int):
        self.values, self.size, self.y = values, values.size, np.empty_like(values)
        self._seed, self._step = seed, step

    def draw(self):
        return _kernels.Stream(hash64(self._seed, None), *ALL_ALIKE, self._step & 0xFFFFFFFF)

    def form(self, begin, stop):
        pass

    def result(self, begin, stop):
        return self.y[begin:stop]

    def store(self, begin, stop, y):
        pass


def _go_through(codec: Codec, shape, values, seed: int, step: int, carry) -> np.ndarray:
    """What the sums stand for; `carry` gets each Sum and leaves its sum in the values."""
    own, answer = _OwnAlone(values, seed, step), None
    steps = codec.bind(Form(tuple(shape), "C", "float32")).sums(own)
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration:
            return own.y
        answer = None
        if isinstance(asked, Sum):
            carry(asked)
        elif asked is not None:
            answer = asked.answer(asked.values)


def _encode(codec: Codec, x, seed: int, step: int, origin=None) -> bytes:
    bound = _bound(codec, x.size)
    regions = _regions(bound, x.size)
    wire, at = np.empty(bound.nbytes_bound(regions), np.uint8), 0
    stream = _kernels.Stream(hash64(seed, None), 0, 0, step & 0xFFFFFFFF)
    prepared = _prepared(bound, regions, x, _kernels.Stream(hash64(seed, None), ALL_ALIKE[0], ALONE, step & 0xFFFFFFFF))
    codec, selected = prepared.codec, prepared.selected
    for number, region in enumerate(regions):
        kept = None if selected is None else selected[number]
        nbytes = codec.encode(of(x, region), None, None, wire[at:], region, stream, kept)
        if nbytes == NOT_FINITE:
            index = region.start + _first_flaw(codec, of(x, region))
            named = index if origin is None else int(origin(np.array([index]))[0])
            raise NonFiniteError(None if np.isfinite(x[index]) else 0, None, named)
        at += nbytes
    return wire[:at].tobytes()


def _decode(codec: Codec, data, y) -> int:
    """y := what a message stands for; the bytes that were read."""
    bound, at = _bound(codec, y.size), 0
    for region in _regions(bound, y.size):
        at += bound.decode(data[at:], of(y, region), region)
    return at


def _bound(codec: Codec, size: int) -> RegionCodec:
    return codec.bind(Form((size,), "C", "float32"))


def _regions(bound: RegionCodec, size: int) -> list[Region]:
    grid = bound.grid(columns((size,), "C"))
    return [Region(begin, end - begin, grid, size) for begin, end in blocks(0, size, grid)]


def _prepared(bound: RegionCodec, regions, x, stream) -> Prepared:
    parts = Parts(regions, lambda region: (of(x, region), None, None), Workspace(), stream=stream)
    return (bound.prepare and alone(bound.prepare(parts))) or Prepared(bound)


def _first_flaw(codec: RegionCodec, x) -> int:
    """The first value that the codec cannot send; if there is none by itself, the largest."""
    bad = ~codec.carries(x)
    return int(np.argmax(bad if bad.any() else np.abs(x)))
