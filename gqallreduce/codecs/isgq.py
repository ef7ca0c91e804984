"""Gradients that are given as products: both factors are quantized and sent to all ranks, which multiply them.

Wire: the message of a rank is that of x, then that of delta, as in factor_wire.py. Buffers that are no products, and
products whose factors would take more bytes, travel as the codec `direct` encodes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gqallreduce.coding import arithmetic
from gqallreduce.coding.codec import Codec, choice, integer, register
from gqallreduce.coding.factor_fit import coded, fit, gains
from gqallreduce.coding.factor_wire import FactorWire
from gqallreduce.coding.indirect import Gathered, Indirect, Own, Whole, sum_whole
from gqallreduce.coding.inner import CompositeCodec, inner_codec
from gqallreduce.coding.layout import Form, Grid, Region
from gqallreduce.coding.outer import Factors, accumulate
from gqallreduce.coding.text import resolved

_FITTED_BITS = 4  # of codes whose numbers are sought


@register
class ISGQ(CompositeCodec):
    """Indirect quantization: of a gradient given as `gq.Outer(x, delta)` the two factors travel, and are multiplied.

    bits
        of a value of delta, and of x.
    x_bits
        of a value of x, 1 or more; 0: as delta.
    method
        dither: values are rounded to steps of a grid that is shifted at random, and the decoder takes the shift back;
        mse: to a few numbers by which the product is nearest to that of the exact factors; mvu: the same, with the sum
        of the product as it is. With mse and mvu codes have at most 4 bits.
    scale
        row: each sample has a scale; matrix: all have one.
    gains
        with mse and mvu and scale=row: the scales of delta make the product nearest, sample by sample.
    sweeps
        with mse and mvu: how often numbers are sought for delta, then for x; 0: those for half-normal magnitudes stay.
    send
        shorter: factors where the messages of all ranks together are shorter than twice the gradient by `direct`;
        factors: always.
    direct
        how all other gradients travel: raw, float16, bfloat16, or a level codec that does not learn.
    every
        N: with /ef, every N-th call of a key sums gradient and residual by `direct`; 0: residuals are sent by `flush`
        alone, and are part of no message.
    Zeros stay exact zeros, but of signed values with one bit. Signed values with b bits have 2^(b-1) - 1 steps on each
    side, others 2^b - 2 (one bit: 0 or the largest, at random).
    Error: dither: none on average; the mean square is the sum over samples (of a convolution: over samples and places)
    of |x|^2 |delta|^2 ((1 + r)(1 + s) - 1), r and s the mean square errors of the two rows over their squares.
    That of a value is d^2 / 12, d a step: the scale over the number of steps on one side; 0 of a zero; with one bit
    x (d - x) of a value x where none is negative, else d^2 / 12 with d twice the scale. Steps of denormal size are
    rounded themselves. With /ef what products lack waits in the residual, from which no factor can take it.
    Cost: (bits of x and delta of all ranks' samples) received by each rank, once, whatever the gradient's size, and a
    product of all ranks' samples on each rank.
    Source: Abdi and Fekri, Indirect stochastic gradient quantization, AAAI 2020, equation 6 and algorithm 1;
    differs: factors go to all ranks, not to a server; scale=row and gains are ours; shifts have 16 random bits.
    """

    bits: int = 2
    x_bits: int = 0
    method: str = "dither"
    scale: str = "row"
    gains: bool = False
    sweeps: int = 1
    send: str = "shorter"
    direct: str = "raw"
    every: int = 0

    name = "isgq"
    source = "Abdi and Fekri, AAAI 2020"
    example = "direct/isgq(bits=2, direct=qsgd(bits=4))"
    host_only = indirect = True

    def __post_init__(self):
        choice(self, "method", "dither", "mse", "mvu")
        most = 8 if self.method == "dither" else _FITTED_BITS
        integer(self, "bits", 1, most)
        integer(self, "x_bits", 0, most)
        choice(self, "scale", "row", "matrix")
        choice(self, "gains", True, False)
        if self.gains and (self.method == "dither" or self.scale == "matrix"):
            raise ValueError("isgq: gains=True, expected method=mse or mvu, and scale=row")
        integer(self, "sweeps", 0, 1000)
        choice(self, "send", "shorter", "factors")
        integer(self, "every", 0, 2**31 - 1)
        object.__setattr__(self, "direct", resolved(inner_codec(self, "direct")))

    @property
    def inner_texts(self) -> tuple[str, ...]:
        return (self.direct,)

    @property
    def direct_codec(self) -> Codec:
        return self.inner_codecs[0]

    @property
    def unbiased(self) -> bool:
        return self.method == "dither" and self.direct_codec.unbiased

    @property
    def deterministic(self) -> bool:
        return self.method != "dither" and self.direct_codec.deterministic

    @property
    def fixed_size(self) -> bool:
        return self.direct_codec.fixed_size

    @property
    def bit_exact(self) -> bool:
        return self.method == "dither"

    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> Indirect:
        whole = Whole(form.size, self.direct_codec)
        if form.factors is None:
            return whole
        sent = Multiplied(self, form.factors, form.size)
        if self.send == "shorter" and size * sent.nbytes >= 2 * self._direct_bytes(form):
            return whole
        return sent

    def _direct_bytes(self, form: Form) -> int:
        bound = self.direct_codec.bind(Form((form.size,), "C", "float32"))
        return bound.nbytes_usual([Region(0, form.size, bound.grid(Grid(4096)), form.size)])


@dataclass(frozen=True)
class Multiplied(Indirect):
    """A gradient whose factors are sent."""

    codec: ISGQ
    factors: Factors
    size: int

    @property
    def summed(self):
        return []

    @property
    def gathered(self):
        return self.nbytes

    @cached_property
    def wires(self) -> tuple[FactorWire, FactorWire]:
        """Of x and of delta."""
        codec = self.codec
        bits, dithered = (codec.x_bits or codec.bits, codec.bits), codec.method == "dither"
        shapes = zip(self.factors.matrices, bits, strict=True)
        x, delta = (FactorWire(*shape, each, codec.scale == "row", dithered) for shape, each in shapes)
        return x, delta

    @property
    def nbytes(self) -> int:
        return sum(wire.nbytes for wire in self.wires)

    def runs(self, columns: Grid) -> Grid:
        return Grid(2**62)

    def sums(self, own: Own):
        every = self.codec.every
        if own.feedback and every and (own.step + 1) % every == 0:
            return (yield from sum_whole(own, self.codec.direct_codec))
        message = np.empty(self.nbytes, np.uint8)
        matrices = own.matrices()
        yield
        self._encode(own, matrices, message)
        yield
        if own.feedback:  # before the exchange, which tells all ranks if a value leaves float32
            yield from self._leave(own, matrices, message)
        everyone = yield Gathered(own, message)
        yield from self._multiply(own, everyone)
        return None

    # --- the factors of a rank ---

    def _split(self, message):
        """(wire, bytes, number of the first random bits) of x and of delta."""
        x, delta = self.wires
        return (x, message[: x.nbytes], 0), (delta, message[x.nbytes :], x.size)

    def _encode(self, own: Own, matrices, message) -> None:
        if self.codec.method == "dither":
            stream = own.stream_of(own.rank)
            for (wire, part, begin), matrix in zip(self._split(message), matrices, strict=True):
                wire.dither(matrix, stream, begin, part)
            return
        exact = [matrix.astype(np.float64) for matrix in matrices]
        every = [coded(matrix, wire.bits, wire.by_row) for matrix, wire in zip(exact, self.wires, strict=True)]
        balanced = self.codec.method == "mvu"
        fit(self.factors, *exact, *every, self.codec.sweeps, balanced)
        if self.codec.gains:
            gains(self.factors, *exact, *every, balanced)
        for (wire, part, _), found in zip(self._split(message), every, strict=True):
            wire.write(found, part)

    def _decode(self, own: Own, rank: int, message, x, delta) -> None:
        """x and delta := what a rank has sent."""
        stream = own.stream_of(rank)
        for (wire, part, begin), y in zip(self._split(message), (x, delta), strict=True):
            wire.decode(part, stream, begin, y)

    def _room(self, ranks: int) -> list[np.ndarray]:
        return [np.empty((ranks * wire.rows, wire.columns), np.float32) for wire in self.wires]

    # --- the gradient ---

    def _multiply(self, own: Own, everyone):
        """The sum of all ranks' products: those of several ranks at one time, with feedback each by itself.

        So a rank's part of the sum is what its residual is less by, whatever the other ranks add.
        """
        y, how = own.result(0, own.size), {}
        rows = self.wires[0].rows
        together = 1 if own.feedback else max(1, self.factors.together // rows)
        for first in range(0, own.ranks, together):
            ranks = range(first, min(first + together, own.ranks))
            x, delta = self._room(len(ranks))
            for at, rank in enumerate(ranks):
                mine = slice(at * rows, (at + 1) * rows)
                self._decode(own, rank, everyone[rank], x[mine], delta[mine])
                yield
            yield from accumulate(self.factors, x, delta, y, own.turned, **how)
            how = {"add": True}
        for begin, stop in own.blocks():
            own.store(begin, stop, y[begin:stop])
            yield

    def _leave(self, own: Own, matrices, message):
        """The residual: own values less what was sent of them."""
        yield from accumulate(self.factors, *matrices, own.values, own.turned)
        for begin, stop in own.blocks():
            own.add_residual(begin, stop)
            yield
        x, delta = self._room(1)
        self._decode(own, own.rank, message, x, delta)
        yield from accumulate(self.factors, x, delta, own.values, own.turned, subtract=True)
        for begin, stop in own.blocks():
            own.limit(begin, stop)
            yield
