"""What a call was given, checked: everything that a rank can see for itself."""

from __future__ import annotations

import operator

import numpy as np

from gqallreduce.backends.buffer import Buffer


def plain_key(key, scheme) -> str | None:
    """The key, as a plain string: other kinds of strings are written differently by `repr`, and so hashed."""
    if key is not None and not isinstance(key, str):
        raise TypeError(f"key is a {type(key).__name__}, expected a string")
    if key is None and scheme.feedback:
        raise ValueError(f"{scheme} keeps a residual: give the buffer a key")
    return None if key is None else str.__str__(key)


def integer(name: str, value) -> int:
    """TypeError unless it is an integer, of Python's or NumPy's."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r}, expected an integer")
    return operator.index(value)


def truth(name: str, value) -> bool:
    """TypeError unless it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}={value!r}, expected True or False")
    return bool(value)


def buffers(buf, out, key, processors, known: tuple | None) -> tuple[Buffer, Buffer]:
    """The call's Buffers, source and target. `known`: the form that the key had before, None if any will do."""
    source = Buffer(buf)
    source.arithmetic = processors.of(source).arithmetic
    form = source.form
    if known not in (None, form):
        raise ValueError(f"key {key!r}: got shape, order, dtype {form}, expected {known} as before")
    if out is None:
        source.require_writable("buf")
        return source, source
    target = Buffer(out)
    if target.device != source.device:
        raise ValueError(f"out is {target.device}, expected {source.device} as buf")
    target.arithmetic = source.arithmetic
    target.require_writable("out")
    if target.form != form:
        raise ValueError(f"out has {target.form}, expected {form} as buf")
    if target.overlaps_partly(source):
        raise ValueError("out overlaps buf partly; expected the same memory or other memory")
    return source, target
