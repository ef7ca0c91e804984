"""A scheme as one line of text: `[schedule/]codec[(option=value, ...)][/ef]`, in code, results and papers alike.

Besides there is `dense`, a scheme of its own: MPI's allreduce.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding import frame
from gqallreduce.coding.codec import NOT_FINITE, Codec, RegionCodec
from gqallreduce.coding.layout import Form, Region, blocks, columns, of
from gqallreduce.coding.preparing import Parts, Prepared, alone
from gqallreduce.coding.text import options_of, resolved
from gqallreduce.coding.transform import ALL_ALIKE, ALONE
from gqallreduce.errors import NonFiniteError, WireError
from gqallreduce.hashing import hash64
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.rounding import usual_arithmetic

AUTO, DENSE, MPI_SUM = "auto", "dense", "mpi"
_FORM = re.compile(
    r"\s*(?:(?P<schedule>\w+)\s*/)?\s*(?P<codec>\w+)\s*(?P<options>\(.*\))?\s*(?:/\s*(?P<feedback>\w+))?\s*", re.DOTALL
)


@dataclass(frozen=True)
class Scheme:
    """What to run: a schedule, a codec, and error feedback or not.

    Schedules beside the registered ones: None, chosen by rule; "auto", chosen by model; "mpi", MPI's own allreduce of
    integers.

    Of the scheme `dense` the schedule is "dense" and the codec `raw`.
    str() gives the text with the options as written; == and hash compare the values, defaults filled in.
    """

    schedule: str | None
    codec: Codec
    feedback: bool
    text: str = field(compare=False, repr=False)

    @staticmethod
    def parse(text: str | Scheme) -> Scheme:
        """A Scheme from text; ValueError says what is wrong, what is near and what is allowed."""
        return text if isinstance(text, Scheme) else _parse(text)

    def __str__(self) -> str:
        return self.text

    def resolved(self, schedule: str | None = None) -> str:
        """The text with every option, and with the schedule that runs."""
        if self.schedule == DENSE:
            return DENSE + "/ef" * self.feedback
        parts = [schedule or self.schedule, resolved(self.codec)]
        return "/".join([part for part in parts if part] + ["ef"] * self.feedback)

    @usual_arithmetic()
    def encode(self, values, *, seed: int = 0, step: int = 0) -> bytes:
        """One message: header and wire of `values`, taken as one vector in memory order, without MPI.

        Raises NonFiniteError if a value is NaN or Inf, or (rank None) beyond what the codec can send.
        """
        x = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        bound, size = self._bound(x.size)
        regions, origin = _regions(bound, size), None
        wire = np.empty(bound.nbytes_bound(regions), np.uint8)
        stream = _kernels.Stream(hash64(seed, None), 0, 0, step & 0xFFFFFFFF)
        if bound.transform is not None:
            if not np.isfinite(x).all():
                raise NonFiniteError(0, None, _first_flaw(bound, x))
            drawn = _drawn(bound, seed, step)
            x, origin = bound.transform.coefficients(drawn, x), bound.transform.origin(drawn, np.arange(size))
        mine = _kernels.Stream(hash64(seed, None), ALL_ALIKE[0], ALONE, step & 0xFFFFFFFF)
        prepared = _prepared(bound, regions, x, mine)
        codec, selected = prepared.codec, prepared.selected
        at = 0
        for number, region in enumerate(regions):
            kept = None if selected is None else selected[number]
            nbytes = codec.encode(of(x, region), None, None, wire[at:], region, stream, kept)
            if nbytes == NOT_FINITE:
                index = region.start + _first_flaw(codec, of(x, region))
                named = index if origin is None else int(origin[index])
                raise NonFiniteError(None if np.isfinite(x[index]) else 0, None, named)
            at += nbytes
        header = bytearray(frame.SIZE)
        frame.Header(frame.DATA, step & 0xFFFFFFFF, self._signature(), at, 0).write(header)
        return bytes(header) + wire[:at].tobytes()

    @usual_arithmetic()
    def decode(self, data, size: int, *, seed: int = 0) -> np.ndarray:
        """float32[size] from one message; WireError unless it is one of this scheme and size.

        seed
            that of `encode`, for `randk`, whose messages do not say which values they hold.
        """
        data = np.frombuffer(data, np.uint8)
        header = frame.read(data)
        if header.kind != frame.DATA or header.signature != self._signature():
            got = "without values" if header.kind != frame.DATA else "of another codec, or of other options"
            raise WireError(f"got a message {got}, expected one of {self.resolved()}")
        if header.word != len(data) - frame.SIZE:
            raise WireError(f"got {len(data) - frame.SIZE} bytes after the header, expected {header.word} as it says")
        bound, length = self._bound(size)
        y, at = np.zeros(length, np.float32), frame.SIZE
        for region in _regions(bound, length):
            at += bound.decode(data[at:], of(y, region), region)
        if at != len(data):
            raise WireError(f"got {len(data)} bytes, expected {at} for {size} values")
        if bound.transform is None:
            return y
        values = np.empty(size, np.float32)
        bound.transform.lengthen(_drawn(bound, seed, header.step), 0, y, values, add=False)
        return values

    def _signature(self) -> int:
        return hash64(self.codec)

    def _bound(self, size: int) -> tuple[RegionCodec, int]:
        """The codec for a vector of so many values, and how many it encodes."""
        form = Form((size,), "C", "float32")
        bound = self.codec.bind(form)
        return bound, bound.encoded(form).size


def _regions(bound: RegionCodec, size: int) -> list[Region]:
    grid = bound.grid(columns((size,), "C"))
    return [Region(begin, end - begin, grid, size) for begin, end in blocks(0, size, grid)]


def _prepared(bound: RegionCodec, regions, x, stream) -> Prepared:
    parts = Parts(regions, lambda region: (of(x, region), None, None), Workspace(), stream=stream)
    return (bound.prepare and alone(bound.prepare(parts))) or Prepared(bound)


def _drawn(bound: RegionCodec, seed: int, step: int):
    """What the transform of a message is made of."""
    return bound.transform.draw(_kernels.Stream(hash64(seed, None), *ALL_ALIKE, step & 0xFFFFFFFF))


def _first_flaw(codec: RegionCodec, x) -> int:
    """The first value that the codec cannot send; if there is none by itself, the largest."""
    bad = ~codec.carries(x)
    return int(np.argmax(bad if bad.any() else np.abs(x)))


@lru_cache(maxsize=1024)
def _parse(text: str) -> Scheme:
    form = _FORM.fullmatch(text)
    if not form:
        raise ValueError(f"scheme {text!r}: expected [schedule/]codec[(option=value, ...)][/ef]")
    schedule, name, written, feedback = form.group("schedule", "codec", "options", "feedback")
    if schedule and feedback is None and name == "ef":  # codec/ef reads as schedule/codec
        schedule, name, feedback = None, schedule, "ef"
    if feedback not in (None, "ef"):
        raise ValueError(f"scheme {text!r}: {feedback!r} after the codec, expected 'ef' or nothing")
    if DENSE in (schedule, name):
        if schedule or written is not None:
            raise ValueError(
                f"scheme {text!r}: dense has no schedule, codec or options, expected 'dense' or 'dense/ef'"
            )
        return Scheme(DENSE, CODECS.find("raw")(), feedback == "ef", "/".join([DENSE, *filter(None, [feedback])]))
    if name == "ef" and feedback:
        raise ValueError(f"scheme {text!r}: 'ef' in place of a codec, expected [schedule/]codec[(options)][/ef]")
    if schedule not in (None, AUTO, MPI_SUM):
        SCHEDULES.find(schedule, also=(AUTO, MPI_SUM))
    options, shown = options_of(f"scheme {text!r}", written)
    codec = CODECS.find(name).make(options)
    codec = codec.with_feedback() if feedback else codec
    if schedule == MPI_SUM and not codec.integer_sums:
        known = ", ".join(name for name, each in sorted(CODECS.items()) if each().integer_sums)
        raise ValueError(
            f"scheme {text!r}: MPI adds integers only, and {name + shown} has none; with their default options these "
            f"have: {known}"
        )
    parts = [schedule, name + shown, feedback]
    return Scheme(schedule, codec, feedback == "ef", "/".join(part for part in parts if part))
