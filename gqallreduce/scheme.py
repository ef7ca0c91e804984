"""A scheme as one line of text: `[schedule/]codec[(option=value, ...)][/ef]`, in code, results and papers alike.
A schedule may have options as a codec has.

Besides there is `dense`, a scheme of its own: MPI's allreduce.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from gqallreduce import messages
from gqallreduce.backends.product import Outer
from gqallreduce.coding import frame
from gqallreduce.coding.codec import Codec
from gqallreduce.coding.text import options_of, resolved
from gqallreduce.errors import WireError
from gqallreduce.hashing import hash64
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.rounding import usual_arithmetic

AUTO, DENSE, MPI_SUM = "auto", "dense", "mpi"
_FORM = re.compile(
    r"\s*(?:(?P<schedule>\w+)\s*(?P<how>\([^()/]*\))?\s*/)?"
    r"\s*(?P<codec>\w+)\s*(?P<options>\(.*\))?\s*(?:/\s*(?P<feedback>\w+))?\s*",
    re.DOTALL,
)


@dataclass(frozen=True)
class Scheme:
    """What to run: a schedule, a codec, and error feedback or not.

    Schedules beside the registered ones: None, chosen by rule; "auto", the fastest of those that the first calls of a
    key have tried (with GQALLREDUCE_AUTO=model: the best by the cost model); "mpi", MPI's own allreduce of integers.

    Of the scheme `dense` the schedule is "dense" and the codec `raw`.
    str() gives the text with the options as written; == and hash compare the values, defaults filled in.
    """

    schedule: str | None
    codec: Codec
    feedback: bool
    text: str = field(compare=False, repr=False)

    @staticmethod
    def parse(text: str | Scheme) -> Scheme:
        """A Scheme from text; ValueError says what is wrong, what is near and what is allowed.

        TypeError for what is neither text nor a Scheme, such as None.
        """
        if isinstance(text, Scheme):
            return text
        if not isinstance(text, str):
            raise TypeError(f"scheme: got {text!r}, expected text such as 'qsgd(bits=4)', or a gq.Scheme")
        return _parse(text)

    def __str__(self) -> str:
        return self.text

    def resolved(self, schedule: str | None = None) -> str:
        """The text with every option, and with the schedule that runs."""
        if self.schedule == DENSE:
            return DENSE + "/ef" * self.feedback
        name = schedule or self.schedule
        if name not in (None, AUTO, MPI_SUM):
            name = SCHEDULES[name].resolved
        parts = [name, resolved(self.codec)]
        return "/".join([part for part in parts if part] + ["ef"] * self.feedback)

    @usual_arithmetic()
    def encode(self, values, *, seed: int = 0, step: int = 0) -> bytes:
        """One message: header and wire of `values`, taken as one vector in memory order, without MPI.

        Codecs that sum factors of matrices look at the shape of `values` too, `isgq` at a gq.Outer.
        Raises NonFiniteError if a value is NaN or Inf, or (rank None) beyond what the codec can send.
        """
        wire, header = messages.encode(self.codec, values, seed, step), bytearray(frame.SIZE)
        frame.Header(frame.DATA, step & 0xFFFFFFFF, self._signature(), len(wire), 0).write(header)
        return bytes(header) + wire

    @usual_arithmetic()
    def decode(self, data, size: int | tuple[int, ...] | Outer, *, seed: int = 0) -> np.ndarray:
        """A float32 vector of so many values from one message; WireError unless it is one of this scheme and size.

        size
            the shape, where `encode` looked at it; a gq.Outer of the same shapes, where it was given one.
        seed
            that of `encode`, for codecs whose messages do not say which values they hold, such as `randk`.
        """
        data = np.frombuffer(data, np.uint8)
        header = frame.read(data)
        if header.kind != frame.DATA or header.signature != self._signature():
            got = "without values" if header.kind != frame.DATA else "of another codec, or of other options"
            raise WireError(f"got a message {got}, expected one of {self.resolved()}")
        if header.word != len(data) - frame.SIZE:
            raise WireError(f"got {len(data) - frame.SIZE} bytes after the header, expected {header.word} as it says")
        y, read = messages.decode(self.codec, data[frame.SIZE :], size, seed, header.step)
        if read != len(data) - frame.SIZE:
            raise WireError(f"got {len(data) - frame.SIZE} bytes, expected {read} for {y.size} values")
        return y

    def _signature(self) -> int:
        return hash64(self.codec)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Scheme:
    form = _FORM.fullmatch(text)
    if not form:
        raise ValueError(f"scheme {text!r}: expected [schedule/]codec[(option=value, ...)][/ef]")
    schedule, how, name, written, feedback = form.group("schedule", "how", "codec", "options", "feedback")
    if schedule and feedback is None and name == "ef" and written is None:  # codec/ef reads as schedule/codec
        schedule, how, name, written, feedback = None, None, schedule, how, "ef"
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
    written_schedule = schedule
    if schedule not in (None, AUTO, MPI_SUM):
        SCHEDULES.find(schedule, also=(AUTO, MPI_SUM))
        given, how = options_of(f"scheme {text!r}", how)
        written_schedule = schedule + how
        schedule = SCHEDULES.make(schedule, given).name
    elif how is not None:
        raise ValueError(f"scheme {text!r}: {schedule!r} has no options")
    options, shown = options_of(f"scheme {text!r}", written)
    codec = CODECS.find(name, also=(DENSE,)).make(options)
    codec = codec.with_feedback() if feedback else codec
    if schedule == MPI_SUM and not codec.integer_sums:
        known = ", ".join(name for name, each in sorted(CODECS.items()) if each().integer_sums)
        raise ValueError(
            f"scheme {text!r}: MPI adds integers only, and {name + shown} has none; with their default options these "
            f"have: {known}"
        )
    parts = [written_schedule, name + shown, feedback]
    return Scheme(schedule, codec, feedback == "ef", "/".join(part for part in parts if part))
