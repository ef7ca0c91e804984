"""`make sanitize` runs this folder under address and undefined-behaviour sanitizers; here is the proof that it does.

A sanitizer that is not loaded finds nothing, and nothing is what everyone hopes to see.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gqallreduce._kernels

pytestmark = pytest.mark.skipif(
    "libasan" not in os.environ.get("LD_PRELOAD", ""), reason="only `make sanitize` loads the sanitizers"
)


def test_the_extension_is_the_sanitized_build_from_outside_the_tree():
    extension = Path(gqallreduce._kernels.__file__)
    assert extension.parents[1].parts[-3:] == ("build", "sanitize", "lib")
    assert Path(gqallreduce.__file__).parent == extension.parent
    symbols = extension.read_bytes()
    assert b"__asan_report_load" in symbols
    assert b"__ubsan_handle_" in symbols


def test_a_write_beyond_a_python_object_ends_the_process_with_a_report():
    overflow = "import ctypes; text = bytes(40); ctypes.memset(id(text) + sys.getsizeof(text), 1, 8)"
    done = subprocess.run([sys.executable, "-c", f"import sys; {overflow}"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
