"""A matrix as codes of so many bits for each value: how the factors of a gradient travel.

Wire: a byte that says whether dithered values are all non-negative (1) or not (0), three bytes of zero; unless they are
dithered, the number of each of the 2^bits codes (float32); the scale of each row, or of all rows together (float32);
the codes, row by row, as one stream of bits.

A value is its row's scale times the number of its code. Dithered ones are counted in steps: the scale over `most`, the
steps from zero to the scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.factor_fit import Coded
from gqallreduce.errors import WireError

_HEAD = 4


@dataclass(frozen=True)
class Steps:
    """How a value and its shift, both in steps, become a code: see csrc/gq/dither.hpp.

    most
        steps of the largest value.
    offset
        the code of no step.
    zero
        the code of a value that is zero, and has no shift; 256 if there is none.
    shifts
        does the decoder take the shift back?
    """

    bits: int
    most: float
    offset: float
    zero: int
    shifts: bool = True

    @classmethod
    def of(cls, bits: int, nonnegative: bool) -> Steps:
        """With one bit: 0 or the scale at random, of which no shift is taken back; or minus or plus half a step."""
        if bits == 1:
            return cls(1, 1.0, 0.0, 256, shifts=False) if nonnegative else cls(1, 0.5, 0.5, 256)
        if nonnegative:
            return cls(bits, 2.0**bits - 2, 0.0, 2**bits - 1)
        return cls(bits, 2.0 ** (bits - 1) - 1, 2.0 ** (bits - 1) - 1, 2**bits - 1)

    @property
    def numbers(self) -> np.ndarray:
        """Of each code."""
        found = np.arange(2**self.bits, dtype=np.float32) - np.float32(self.offset)
        if self.zero < len(found):
            found[self.zero] = 0
        return found

    def encode(self, x: np.ndarray, step: np.ndarray, stream, begin: int, wire: np.ndarray) -> None:
        nearest, meeting, vector = self.bits > 1, 0.0 if self.shifts else 0.5, x.reshape(-1)
        steps = self.offset, self.most, meeting, self.zero % 256  # one bit has no code of zero
        _kernels.dither_encode(vector, step, wire, self.bits, nearest, *steps, stream, begin)


@dataclass(frozen=True)
class FactorWire:
    """How one of the two matrices travels.

    rows, columns
        of the matrix.
    bits
        of a code.
    by_row
        has each row a scale of its own?
    dithered
        by subtractive dither, or by numbers that the encoder chose?
    """

    rows: int
    columns: int
    bits: int
    by_row: bool
    dithered: bool

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def scales(self) -> int:
        return self.rows if self.by_row else 1

    @property
    def numbers(self) -> int:
        """How many are on the wire."""
        return 0 if self.dithered else 2**self.bits

    @property
    def nbytes(self) -> int:
        return _HEAD + 4 * (self.numbers + self.scales) + self._code_bytes

    @property
    def _code_bytes(self) -> int:
        return (self.size * self.bits + 7) // 8

    def parts(self, wire):
        """(head, numbers, scales, codes) of a message, as views; the second and third of float32."""
        scales = _HEAD + 4 * self.numbers
        codes = scales + 4 * self.scales
        return wire[:_HEAD], wire[_HEAD:scales].view("<f4"), wire[scales:codes].view("<f4"), wire[codes:]

    def dither(self, x: np.ndarray, stream, begin: int, wire: np.ndarray) -> None:
        """Encode finite values; `begin` is the number of the first one's random bits."""
        head, _, scales, codes = self.parts(wire)
        nonnegative = bool(x.min() >= 0)
        head[:] = nonnegative, 0, 0, 0
        largest = np.empty(self.rows, np.float32)
        _kernels.largest_of_rows(x.reshape(-1), largest)
        scales[:] = largest if self.by_row else largest.max()
        steps = Steps.of(self.bits, nonnegative)
        steps.encode(x, self._steps(scales, steps), stream, begin, codes)

    def _steps(self, scales, steps: Steps) -> np.ndarray:
        """The step of each row."""
        return np.broadcast_to(scales / np.float32(steps.most), self.rows).astype(np.float32)

    def write(self, coded: Coded, wire: np.ndarray) -> None:
        """Encode a matrix whose codes, numbers and scales are known."""
        head, numbers, scales, codes = self.parts(wire)
        head[:] = 0
        numbers[:], scales[:] = coded.numbers, coded.scales if self.by_row else coded.scales[0]
        _kernels.pack(coded.codes.reshape(-1), self.bits, codes)

    def decode(self, wire: np.ndarray, stream, begin: int, y: np.ndarray) -> None:
        """y := the matrix. WireError for what is no message of this form, or has numbers that are not finite."""
        if len(wire) != self.nbytes:
            raise WireError(f"a factor of {self.rows} x {self.columns}: got {len(wire)} bytes, expected {self.nbytes}")
        head, numbers, scales, codes = self.parts(np.ascontiguousarray(wire))
        if head[0] > 1 or head[1:].any():
            raise WireError(f"a factor: its first bytes are {head.tolist()}, expected 0 or 1, and zeros")
        if not np.isfinite(numbers).all() or not np.isfinite(scales).all() or (self.dithered and (scales < 0).any()):
            raise WireError("a factor has a number or scale that is not finite, or a negative scale of steps")
        steps = Steps.of(self.bits, bool(head[0]))
        if self.dithered:
            step, number, shifts = self._steps(scales, steps), steps.numbers, steps.shifts
        else:
            step = np.broadcast_to(scales, self.rows).astype(np.float32)
            number, shifts = np.array(numbers), False
        _kernels.dither_decode(codes, step, number, y.reshape(-1), self.bits, shifts, steps.zero, stream, begin)
