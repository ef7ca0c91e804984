"""Values to the bytes of a message and back, by a codec alone: for tests, teaching and golden files. Needs no MPI.

Of an indirect codec the message holds all vectors that a rank of one would have summed, end to end, or the message that
all ranks would have got.
"""

from __future__ import annotations

import copy
import math

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.product import Outer, Product, without_flaws
from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding.codec import NOT_FINITE, Codec, RegionCodec
from gqallreduce.coding.indirect import ALL_ALIKE, ALONE, Gathered, Own, Sum
from gqallreduce.coding.layout import Form, Region, blocks, columns, of
from gqallreduce.coding.preparing import Parts, Prepared, alone
from gqallreduce.errors import NonFiniteError, WireError
from gqallreduce.hashing import hash64


def encode(codec: Codec, x, seed: int, step: int) -> bytes:
    """What comes behind the header. NonFiniteError if a value is NaN or Inf, or (rank None) cannot be sent."""
    form, vector, matrices = _given(x)
    if not codec.indirect:
        return _encode(codec, vector, seed, step)
    if not np.isfinite(vector).all():
        raise NonFiniteError(0, None, int(np.argmax(~np.isfinite(vector))))
    messages = []

    def send(asked: Sum | Gathered):
        if isinstance(asked, Gathered):
            messages.append(asked.message.tobytes())
            return asked.message[None]
        messages.append(_encode(asked.codec, asked.values, seed, step, asked.origin))
        _decode(asked.codec, np.frombuffer(messages[-1], np.uint8), asked.values)
        return None

    _go_through(codec, form, _OwnAlone(vector, matrices, seed, step), send)
    return b"".join(messages)


def decode(codec: Codec, data, like, seed: int, step: int) -> tuple[np.ndarray, int]:
    """(float32 vector, bytes that were read). `like`: the shape, or an Outer of the same shapes."""
    if isinstance(like, Outer):  # whatever its values are
        like = copy.copy(like)
        like.x, like.delta = (np.zeros(np.shape(each), np.float32) for each in (like.x, like.delta))
    form, vector, matrices = _given(like if isinstance(like, Outer) else np.zeros(like, np.float32))
    if not codec.indirect:
        y = np.zeros(form.size, np.float32)
        return y, _decode(codec, data, y)
    at = 0

    def receive(asked: Sum | Gathered):
        nonlocal at
        if isinstance(asked, Gathered):
            begin, at = at, at + asked.message.size
            return data[begin:at][None]
        at += _decode(asked.codec, data[at:], asked.values)
        return None

    y = _go_through(codec, form, _OwnAlone(vector, matrices, seed, step), receive)
    if not np.isfinite(y).all():
        raise WireError(f"{codec.name}: got numbers whose products leave float32")
    return y, at


def _given(x) -> tuple[Form, np.ndarray, list | None]:
    """(form, values as one vector, x and delta if they are given as a product)."""
    if not isinstance(x, Outer):
        vector = np.ascontiguousarray(x, dtype=np.float32).reshape(-1)
        return Form(np.shape(x), "C", "float32"), vector, None
    product = Product.of(x, Buffer(x.room()))
    vector = np.empty(product.size, np.float32)
    product.load(0, product.size, vector)
    return product.form, vector, [without_flaws(each) for each in product.matrices()]


class _OwnAlone(Own):
    """Values of one rank, without feedback or state."""

    rank, ranks, number, feedback, learned, turned = 0, 1, 0, False, None, False

    def __init__(self, values, matrices, seed: int, step: int):
        self.values, self.size, self.y = values, values.size, np.empty_like(values)
        self._matrices, self._seed, self.step = matrices, seed, step

    def draw(self):
        return _kernels.Stream(hash64(self._seed, None), *ALL_ALIKE, self.step & 0xFFFFFFFF)

    def stream_of(self, rank):
        return _kernels.Stream(hash64(self._seed, None), ALL_ALIKE[0], ALONE + rank, self.step & 0xFFFFFFFF)

    def matrices(self):
        return self._matrices

    def form(self, begin, stop):
        pass

    def add_residual(self, begin, stop):
        pass

    def limit(self, begin, stop, most=math.inf):
        pass

    def result(self, begin, stop):
        return self.y[begin:stop]

    def store(self, begin, stop, y):
        pass


def _go_through(codec: Codec, form: Form, own: _OwnAlone, carry) -> np.ndarray:
    """What sums and messages stand for; `carry` gets each, and leaves a sum in its values, or returns the messages."""
    answer, steps = None, codec.bind(form).sums(own)
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration:
            return own.y
        answer = None
        if isinstance(asked, (Sum, Gathered)):
            answer = carry(asked)
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
