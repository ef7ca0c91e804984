"""A codec as text: `codec[(option=value, ...)]`, options by keyword, values bare words, Python literals or codecs."""

from __future__ import annotations

import ast
import re

from gqallreduce.coding.codec import Codec
from gqallreduce.registry import CODECS

_FORM = re.compile(r"\s*(?P<codec>\w+)\s*(?P<options>\(.*\))?\s*", re.DOTALL)


def codec_of(text: str) -> Codec:
    """The codec; ValueError says what is wrong, what is near and what is allowed."""
    form = _FORM.fullmatch(text)
    if not form:
        raise ValueError(f"codec {text!r}: expected codec[(option=value, ...)]")
    name, written = form.group("codec", "options")
    return CODECS.find(name).make(options_of(f"codec {text!r}", written)[0])


def resolved(codec: Codec) -> str:
    """The text with every option."""
    written = ", ".join(f"{name}={getattr(codec, name)}" for name in codec.options())
    return codec.name + (f"({written})" if written else "")


def options_of(named: str, written: str | None) -> tuple[dict, str]:
    """(option -> value, the options as written with spaces normalised); `named` is what an error names."""
    if written is None:
        return {}, ""
    try:
        call = ast.parse(f"f{written}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(word.arg is None for word in call.keywords):
            raise ValueError("keyword options only")
        values = {word.arg: _literal(word.value) for word in call.keywords}
        if not isinstance(call.func, ast.Name) or len(values) < len(call.keywords):
            raise ValueError("every option once, in one pair of parentheses")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{named}: options {written!r} cannot be read ({error})") from None
    shown = ", ".join(f"{word.arg}={ast.unparse(word.value)}" for word in call.keywords)
    return values, f"({shown})" if shown else ""


def _literal(node):
    """A bare word, a codec with options as its text, or a Python literal."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        CODECS.find(node.func.id)
        return ast.unparse(node)
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
