"""Codecs that others are given as an option: for the values that those choose or make."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from functools import cached_property

from gqallreduce.coding.codec import Codec
from gqallreduce.coding.levels import LevelCodec
from gqallreduce.coding.plain import PlainCodec
from gqallreduce.coding.text import codec_of

_PLAIN = "raw, float16, bfloat16"


def inner_codec(codec: Codec, option: str, *also: type, also_named: str = "") -> Codec:
    """The codec that an option names; ValueError unless it is plain, of levels that are not learned, or one of `also`.

    also_named
        the latter in words, for the error.
    """
    text = getattr(codec, option)
    if not isinstance(text, str):
        raise ValueError(f"{codec.name}: {option}={text!r}, expected a codec")
    found = codec_of(text)
    if not isinstance(found, (PlainCodec, LevelCodec, *also)) or found.learns:
        levels = "a level codec that does not learn"
        expected = f"{_PLAIN}, {levels}, or {also_named}" if also_named else f"{_PLAIN} or {levels}"
        raise ValueError(f"{codec.name}: {option}={text}, expected {expected}")
    return found


class CompositeCodec(Codec):
    """A codec that has others do a part of its work, which an option names; as they are with feedback, if it is so."""

    @property
    @abstractmethod
    def inner_texts(self) -> tuple[str, ...]:
        """Those codecs as text."""

    @cached_property
    def inner_codecs(self) -> tuple[Codec, ...]:
        found = map(codec_of, self.inner_texts)
        return tuple(each.with_feedback() if self.contracted else each for each in found)

    def with_feedback(self):
        if all(each.with_feedback() is each for each in self.inner_codecs):
            return self
        return dataclasses.replace(self).knowing(contracted=True)  # anew, without what was found before
