"""The contract of a codec: n float32 values to bytes and back, nothing else.

A codec is an immutable value made of its options. It owns no memory and no randomness: the residuals before and
after a call come in as arrays (`residual`, `new_residual`), the randomness as a `Stream`, both keyed by the caller.
It works on a *region*: a range of the flattened vector whose units (columns or buckets) lie on a fixed grid.

What is called a region here may be a Span of several: on a device, and for codecs with `batches` on the host too. The
arrays then hold the elements of all regions end to end, and the wire their messages.

Its arrays are NumPy's, or those of the device whose `arithmetic` it was told to use (`on`); what the device alone can
know is told later (processor.py).

encode(x, residual, new_residual, wire, region, stream, selected) -> bytes written, or NOT_FINITE
    v = x + residual, or x where residual is None. Writes the wire and, where `new_residual` is given, v minus what
    `wire` decodes to.
decode(wire, y, region, scale, streaming) -> bytes read
    overwrites y with scale times what was encoded. The sender decodes its own bytes: what is sent is what is kept.
    `streaming` is a hint, y is large and not read again soon, that changes no value.
decode_add(wire, y, region) -> bytes read
    y += what was encoded.
Both raise WireError for bytes that are no message of this region, and never touch anything outside y.

What it clips, since it cannot send as much of a value, it counts in `stream.clipped`.

A codec that `lifts` keeps sums in other numbers than the values: `lift` turns a rank's own values into them, once, with
the only error that is made; `sums` is the codec of such sums, and `lower` turns a finished one into values.
A codec that `agrees` has `measure` called on every rank before the first encoding; the largest of those numbers goes to
`agreed`, which gives the codec of this one call.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from gqallreduce.coding import arithmetic
from gqallreduce.coding.arithmetic import NOT_FINITE as NOT_FINITE
from gqallreduce.coding.layout import Grid, Region
from gqallreduce.errors import WireError
from gqallreduce.registry import CODECS, near

PROMISES = ("unbiased", "deterministic", "linear", "fixed_size", "bit_exact", "learns")


class Codec(ABC):
    """Base of all codecs: frozen dataclasses, options are their fields."""

    name: ClassVar[str]
    source: ClassVar[str]
    example: ClassVar[str]
    unbiased: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    fixed_size: ClassVar[bool] = False
    bit_exact: ClassVar[bool] = True
    learns: ClassVar[bool] = False
    # float32, but for codecs that carry the buffer's own dtype
    working: ClassVar[np.dtype] = np.dtype(np.float32)
    # the operations that it is made of, on the arrays of one processor
    arithmetic = arithmetic
    # must `select` run over the whole range before its first region is encoded?
    selects: ClassVar[bool] = False
    # are own values turned by `lift` into the numbers that `sums` encodes?
    lifts: ClassVar[bool] = False
    # must the largest `measure` of all ranks be known before the first encoding?
    agrees: ClassVar[bool] = False
    # does it take a Span with regions of several small tensors, end to end?
    batches: ClassVar[bool] = False

    @abstractmethod
    def grid(self, columns: Grid) -> Grid:
        """Where the vector may be cut: the columns, or a grid of the codec's own."""

    @abstractmethod
    def nbytes_bound(self, regions: list[Region]) -> int:
        """The most bytes that encoding these regions into one message takes; with `fixed_size`, exactly those."""

    @abstractmethod
    def encode(self, x, residual, new_residual, wire, region: Region, stream, selected=None) -> int: ...

    @abstractmethod
    def decode(self, wire, y, region: Region, scale: float = 1.0, streaming: bool = False) -> int: ...

    @abstractmethod
    def decode_add(self, wire, y, region: Region) -> int: ...

    def carries(self, v) -> np.ndarray:
        """Which values it can send, each by itself (bool): by default the finite ones."""
        return np.isfinite(v)

    def bind(self, dtype: str, terms: int = 1) -> Codec:
        """The codec for buffers of this dtype and sums of so many terms; most do not care."""
        return self

    def on(self, arithmetic) -> Codec:
        """The same codec for the arrays of another processor."""
        made = copy.copy(self)
        object.__setattr__(made, "arithmetic", arithmetic)
        return made

    def __copy__(self) -> Codec:
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __getstate__(self) -> dict:
        """What pickle and deepcopy take: the fields. It comes back as a codec for the host."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def entries(self, nbytes: int, regions: list[Region]) -> int:
        """Values that a message of so many bytes holds, for codecs that send some only."""
        return 0

    @property
    def sums(self) -> Codec:
        """The codec of partial sums."""
        return self

    def lift(self, x, residual, new_residual, y, region: Region, stream) -> bool:
        """For codecs with `lifts`: y := x + residual as `sums` takes it, new_residual := what that lost; y may be x.

        True if a value is not finite; that value stays in y.
        """
        raise AssertionError(f"{self.name} lifts nothing")

    def lower(self, y, region: Region) -> bool:
        """For codecs with `lifts`: a finished sum to values, in place; True if one is not finite."""
        raise AssertionError(f"{self.name} lifts nothing")

    def measure(self, parts) -> float:
        """For codecs with `agrees`: this rank's number, from (region, x, residual, new_residual) of all its parts."""
        raise AssertionError(f"{self.name} agrees on nothing")

    def measure_each(self, part, counts: list[int]) -> list[float]:
        """For codecs with `agrees` and `batches`: the same of several tensors, from (span, x, residual, None).

        counts
            how many regions of the span are of each tensor.
        """
        raise AssertionError(f"{self.name} agrees on nothing")

    def agreed(self, largest: float | np.ndarray) -> Codec:
        """For codecs with `agrees`: that of a call in which `largest` is the largest number measured, or one of each
        tensor of a group."""
        raise AssertionError(f"{self.name} agrees on nothing")

    def select(self, parts, workspace):
        """For codecs with `selects`: decide what of a whole range is encoded, before its first region is.

        A generator that yields between kernel calls and returns what `encode` takes as `selected`, one per part.
        parts
            sequence of (region, x, residual, new_residual), each loaded when it is asked for.
        """
        raise AssertionError(f"{self.name} selects nothing")

    def select_each(self, x, residual, new_residual, span):
        """For codecs with `selects`: the same of each region of a Span by itself, in one go; they are small."""
        raise AssertionError(f"{self.name} selects nothing")

    @classmethod
    def options(cls) -> dict:
        return {field.name: field.default for field in dataclasses.fields(cls) if field.init}

    @classmethod
    def promises(cls) -> dict[str, bool]:
        """What the codec with its default options promises; others may promise more, or less."""
        default = cls()
        return {name: getattr(default, name) for name in PROMISES}

    @classmethod
    def make(cls, given: dict) -> Codec:
        """The codec with these options; ValueError for unknown ones."""
        allowed = cls.options()
        for option in given:
            if option not in allowed:
                known = ", ".join(allowed) or "none"
                raise ValueError(f"{cls.name} has no option {option!r}{near(option, allowed)}; options: {known}")
        return cls(**given)


class FixedSizeCodec(Codec):
    """A codec whose message size is a function of the region alone: three short methods to write."""

    fixed_size = True

    @abstractmethod
    def nbytes(self, region: Region) -> int:
        """Exactly the bytes of a region."""

    @abstractmethod
    def write(self, x, residual, new_residual, payload, region: Region, stream) -> bool:
        """Encode into exactly the region's bytes; True if a value is not finite."""

    @abstractmethod
    def read(self, payload, y, region: Region, scale: float, streaming: bool) -> None: ...

    @abstractmethod
    def read_add(self, payload, y, region: Region) -> None: ...

    def nbytes_bound(self, regions: list[Region]) -> int:
        return sum(map(self.nbytes, regions))

    def encode(self, x, residual, new_residual, wire, region: Region, stream, selected=None) -> int:
        nbytes = self.nbytes(region)
        return NOT_FINITE if self.write(x, residual, new_residual, wire[:nbytes], region, stream) else nbytes

    def decode(self, wire, y, region: Region, scale: float = 1.0, streaming: bool = False) -> int:
        payload = self._payload(wire, region)
        self.read(payload, y, region, scale, streaming)
        return len(payload)

    def decode_add(self, wire, y, region: Region) -> int:
        payload = self._payload(wire, region)
        self.read_add(payload, y, region)
        return len(payload)

    def _payload(self, wire, region: Region):
        nbytes = self.nbytes(region)
        if len(wire) < nbytes:
            raise WireError(f"{self.name}: {len(wire)} bytes, expected {nbytes} for {region.size} values")
        return wire[:nbytes]


def register(cls: type[Codec]) -> type[Codec]:
    """Class decorator: makes it a frozen dataclass and enters it under its name."""
    made = dataclasses.dataclass(frozen=True)(cls)
    CODECS.add(made.name, made)
    return made


def integer(codec: Codec, option: str, low: int, high: int) -> None:
    """ValueError unless the option is an integer in [low, high]."""
    value = getattr(codec, option)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{codec.name}: {option}={value!r}, expected an integer from {low} to {high}")


def choice(codec: Codec, option: str, *allowed) -> None:
    """ValueError unless the option is one of these."""
    value = getattr(codec, option)
    if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
        raise ValueError(f"{codec.name}: {option}={value!r}, expected one of {', '.join(map(str, allowed))}")
