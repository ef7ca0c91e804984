"""The contract of a codec: n float32 values to bytes and back, nothing else.

A codec is an immutable value made of its options. `bind` gives what works on buffers of one form: a *bound codec*. That
owns no memory and no randomness: the residuals before and after a call come in as arrays (`residual`,
`new_residual`), the randomness as a `Stream`, both keyed by the caller. It works on a *region*: a range of the
flattened vector whose units (columns or buckets) lie on a fixed grid.

What is called a region here may be a Span of several: on a device, and for codecs with `batches` on the host too. The
arrays then hold the elements of all regions end to end, and the wire their messages.

Its arrays are NumPy's, or those of the device whose `arithmetic` it was bound to; what the device alone can know is
told later (processor.py).

encode(x, residual, new_residual, wire, region, stream, selected) -> bytes written, or NOT_FINITE
    v = x + residual, or x where residual is None. Writes the wire and, where `new_residual` is given, v minus what
    `wire` decodes to. The arrays are vectors of `region.size` elements: x of dtype `working`, residuals of float32;
    wire is uint8, at least `nbytes_bound([region])` long. NOT_FINITE if a value of v cannot be sent.
decode(wire, y, region, scale, streaming) -> bytes read
    overwrites y with scale times what was encoded. The sender decodes its own bytes: what is sent is what is kept.
    `streaming` is a hint, y is large and not read again soon, that changes no value.
decode_add(wire, y, region) -> bytes read
    y += what was encoded.
Both raise WireError for bytes that are no message of this region, and never touch anything outside y.

What it clips, since it cannot send as much of a value, it counts in `stream.clipped`.

A codec may also sum other vectors than the buffer: then it is `indirect`, and `bind` gives what makes those
(indirect.py).

What must be known of all values before the first is encoded, `prepare` finds out (preparing.py).

*How partial sums are kept* is apart from how a rank's own values are encoded. `begin_sum` makes a running sum of own
values, `of_sums` encodes, decodes and adds such sums (as above, without a residual before), `finish` turns a finished
one into values. By default a sum is kept as float32 values, and encoded as own values are. With `of_sums.exact` own
values are encoded once, which is the only error, and sums of what that kept are added and sent without loss: as
integers, or as float32 values of which many are zero.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from gqallreduce.coding import arithmetic
from gqallreduce.coding.arithmetic import NOT_FINITE as NOT_FINITE
from gqallreduce.coding.indirect import Indirect
from gqallreduce.coding.layout import Form, Grid, Region, Span
from gqallreduce.errors import WireError
from gqallreduce.registry import CODECS, near

PROMISES = ("unbiased", "deterministic", "linear", "fixed_size", "bit_exact", "learns")


class SharedScale(NamedTuple):
    """How the scale of a rank's own values of a tensor is found, and the unit for the largest of all ranks.

    clip
        at most so many times their root mean square; 0: no limit.
    rotated
        True: that of a bucket, the largest of all buckets. False: that of the tensor, or the largest magnitude if less.
    steps, most
        the least unit of which so many are no less than the scale, at most about `most`.
    """

    clip: float
    rotated: bool = False
    steps: int = 1
    most: float = math.inf


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
    # E|Q(v) - v|^2 <= omega |v|^2 for every vector v, float32 rounding aside; None if there is no such number
    omega: ClassVar[float | None] = None
    # are scales reduced, since errors are kept: the error is smaller then, and biased?
    contracted = False
    # are its sums whole numbers, of a unit that all ranks share?
    integer_sums: ClassVar[bool] = False
    # do messages of sums take more bytes than those of own values?
    sums_grow: ClassVar[bool] = False
    # has it no operations on a device? Then device arrays go through host memory
    host_only: ClassVar[bool] = False
    # do the borders of its chunks follow from earlier calls? Then it has borders(learned)
    moves_borders: ClassVar[bool] = False
    # do ranks share a scale, the largest of their own ones? Then it has `coder_of`, and the runtime in C++ finds own
    # scales. Else None
    shared_scale: ClassVar[SharedScale | None] = None
    # does it sum other vectors than the buffer? Then it is host_only too
    indirect: ClassVar[bool] = False

    @abstractmethod
    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> RegionCodec | Indirect:
        """The codec for buffers of this form, on so many ranks, and the arrays of one processor."""

    def with_feedback(self) -> Codec:
        """What encodes in its place where errors are kept; its messages are decoded as its own."""
        return self

    def knowing(self, **known) -> Codec:
        """A copy with these attributes set."""
        made = copy.copy(self)
        for name, value in known.items():
            object.__setattr__(made, name, value)
        return made

    def __copy__(self) -> Codec:
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __getstate__(self) -> dict:
        """What pickle and deepcopy take: the fields. It comes back as a codec for the host."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | ({"contracted": True} if self.contracted else {})

    def relearned(self, learned: dict, form: Form) -> dict:
        """For codecs that learn: what one has learned, from a checkpoint, checked. ValueError if it is unfit."""
        raise AssertionError(f"{self.name} learns nothing")

    def borders(self, learned: dict | None) -> tuple[int, ...]:
        """Between the pieces of a tensor, as the State of its key has them; empty for equal pieces."""
        raise AssertionError(f"{self.name} has equal pieces")

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
        return cls(**{option: _as_written(value, allowed[option]) for option, value in given.items()})


def _as_written(value, default):
    """Of a number with a fraction, 2 is 2.0: one scheme, however it is written."""
    whole = isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole else value


class RegionCodec(Codec):
    """A codec that encodes the values of a buffer, region by region."""

    # float32, but for codecs that carry the buffer's own dtype
    working: ClassVar[np.dtype] = np.dtype(np.float32)
    # the operations that it is made of, on the arrays of one processor
    arithmetic = arithmetic
    # of sums: are they added and sent without loss?
    exact: ClassVar[bool] = False
    # of sums: must those of a piece be prepared before they are encoded?
    prepares: ClassVar[bool] = False
    # does it take a Span with regions of several small tensors, end to end?
    batches: ClassVar[bool] = False
    # is a message the values as they lie in memory?
    verbatim: ClassVar[bool] = False
    # prepare(parts): the generator that finds out what must be known of these values (preparing.py), None if nothing
    prepare: ClassVar[object] = None
    # known(learned): the Prepared of a call for which what the State of its key holds is enough, so that `prepare`
    # would look at no value and ask nothing; None for other calls. None if there are no such calls
    known: ClassVar[object] = None

    @abstractmethod
    def grid(self, columns: Grid) -> Grid:
        """Where the vector may be cut: the columns, or a grid of the codec's own."""

    def runs(self, columns: Grid) -> Grid:
        """Elements whose errors depend on each other's sizes: a column or bucket, unless a subclass says otherwise."""
        return self.grid(columns)

    @abstractmethod
    def nbytes_bound(self, regions: list[Region]) -> int:
        """The most bytes that encoding these regions into one message takes; with `fixed_size`, exactly those."""

    def nbytes_usual(self, regions: list[Region]) -> int:
        """What they take if their values are as those of the whole vector, for predictions: the bound, by default."""
        return self.nbytes_bound(regions)

    def nbytes_in_lanes(self, regions: list[Region]) -> int:
        """By which lanes are counted, so that messages do not get short: the bound, by default."""
        return self.nbytes_bound(regions)

    @abstractmethod
    def encode(self, x, residual, new_residual, wire, region: Region, stream, selected=None) -> int: ...

    @abstractmethod
    def decode(self, wire, y, region: Region, scale: float = 1.0, streaming: bool = False) -> int: ...

    @abstractmethod
    def decode_add(self, wire, y, region: Region) -> int: ...

    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> RegionCodec:
        return self.knowing(arithmetic=arithmetic)

    def carries(self, v) -> np.ndarray:
        """Which values it can send, each by itself (bool): by default the finite ones."""
        return np.isfinite(v)

    def entries(self, payload, extents: list[Span]) -> int:
        """Values that a message holds, for codecs that send some only."""
        return 0

    def coder(self):
        """For the runtime in C++: what encodes, decodes and adds own values and sums alike; None if it has no such."""
        return None

    # --- how sums are kept ---

    @property
    def of_sums(self) -> RegionCodec:
        """The codec of partial sums: it has `encode`, `decode`, `decode_add`, `prepare`, `prepares` and `exact`."""
        return self

    def begin_sum(self, x, residual, new_residual, y, region: Region, stream, selected=None) -> bool:
        """y := x + residual as sums are kept; y may be x. Is a value not finite? That value stays in y.

        new_residual
            := what that lost, if `of_sums.exact`; else nothing is lost yet.
        selected
            as `encode` gets it, if `of_sums.exact`.
        """
        return self.arithmetic.add_finite(x, residual, y)

    def finish(self, y, region: Region) -> bool:
        """A finished sum to values, in place; is one not finite?"""
        return False


class FixedSizeCodec(RegionCodec):
    """A codec whose message size is a function of the region alone: five short methods to write."""

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
        meant = near(str(value).capitalize(), map(str, allowed)) if isinstance(allowed[0], bool) else ""
        raise ValueError(f"{codec.name}: {option}={value!r}{meant}, expected one of {', '.join(map(str, allowed))}")
