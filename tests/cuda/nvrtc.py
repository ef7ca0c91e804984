"""NVRTC without a GPU: a source to machine code for one architecture."""

import ctypes
import importlib.util
import uuid
from functools import cache
from pathlib import Path

import pytest


def _candidates():
    found = importlib.util.find_spec("nvidia")  # where pip puts NVIDIA's libraries
    for folder in found.submodule_search_locations if found else []:
        for builtins in sorted(Path(folder).glob("*/lib/libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins))  # some versions look for it by its name only, so where it is loaded already
        yield from sorted(Path(folder).glob("*/lib/libnvrtc.so.*"))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12")


@cache
def _library():
    for candidate in _candidates():
        try:
            return ctypes.CDLL(str(candidate))
        except OSError:
            continue
    return None


needs_nvrtc = pytest.mark.skipif(_library() is None, reason="no NVRTC on this system: pip install .[cuda-compile]")


def _text(program, size_of, get) -> bytes:
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert get(program, text) == 0
    return text.raw


def compiled(name: str, source: str, options) -> tuple[bytes, str, str]:
    """(machine code, PTX, the compiler's log); AssertionError with the log if it does not compile."""
    nvrtc, program = _library(), ctypes.c_void_p()
    source += f"\n// {uuid.uuid4()}\n"  # what it compiled before it takes from a cache, without the log
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None) == 0
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
    log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0").decode()
    assert not failed, log
    code = _text(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    ptx = _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).decode()
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code, ptx, log
