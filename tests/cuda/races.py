"""A device whose kernels run as a serial grid that the thread sanitizer watches, in a process per family of kernels.

Its memory is a file that all of them map. A race is an AssertionError with what the sanitizer says.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from serial import SANITIZED, built

NBYTES = 1 << 28  # of memory; what is never touched takes none
FLAGS = ["-O1", "-g", "-fsanitize=thread"]


@cache
def _complaint() -> str:
    """Why programs that the thread sanitizer watches do not run here; "" if they do."""
    if SANITIZED:
        return "one sanitizer at a time"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        command = ["g++", "-fsanitize=thread", "-x", "c++", "-", "-o", program]
        try:
            subprocess.run(command, input="int main() {}", text=True, check=True, capture_output=True)
            subprocess.run([program], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as problem:
            return f"no program runs under the thread sanitizer: {problem} {getattr(problem, 'stderr', '')}"
    return ""


needs_thread_sanitizer = pytest.mark.skipif(bool(_complaint()), reason=_complaint())


class RacesRuntime:
    """What Copying asks of a device. All memory is free again after each launch."""

    def __init__(self, descending: bool = False):
        self._descending, self._programs = descending, {}
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._file.truncate(NBYTES)
        self._memory = np.frombuffer(mmap.mmap(self._file.fileno(), NBYTES), np.uint8)
        self._taken = 0

    def close(self) -> None:
        for program in self._programs.values():
            program.close()
        self._file.close()

    @contextlib.contextmanager
    def active(self):
        self._taken = 0
        yield

    def empty(self, nbytes: int) -> np.ndarray:
        begin, self._taken = self._taken, self._taken + nbytes + -nbytes % 256
        assert self._taken <= NBYTES
        return self._memory[begin : begin + nbytes]

    @staticmethod
    def pinned(nbytes: int) -> np.ndarray:
        return np.empty(nbytes, np.uint8)

    def upload(self, target: np.ndarray, source: np.ndarray) -> None:
        target[:] = source

    def fetch(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def launch(self, family: str, kernel: str, blocks: int, threads: int, *arguments) -> None:
        if family not in self._programs:
            self._programs[family] = Program(family, self._file.fileno())
        program = self._programs[family]
        given = [self._given(argument, program.memory) for argument in arguments]
        program.launch(kernel, blocks, threads, self._descending, given)

    def _given(self, argument, memory: int) -> np.generic:
        if argument is None:
            return np.uint64(0)
        if isinstance(argument, np.ndarray):
            return np.uint64(memory + argument.ctypes.data - self._memory.ctypes.data)
        return argument


class Program:
    """A family's kernels in a process; `memory` is the address at which it has mapped the file."""

    def __init__(self, family: str, file: int):
        environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1 report_thread_leaks=0"}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [built(family, "races.cpp", FLAGS), str(file), str(NBYTES)], pass_fds=[file], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
        )  # fmt: skip
        self.memory = int(self._answer())

    def launch(self, kernel: str, blocks: int, threads: int, descending: bool, arguments: list[np.generic]) -> None:
        bits = [f"{each.nbytes} {int.from_bytes(each.tobytes(), 'little')}" for each in arguments]
        print(kernel, blocks, threads, int(descending), len(bits), *bits, file=self._process.stdin, flush=True)
        answer = self._answer()
        assert answer == "done", f"{kernel}: {answer}"

    def _answer(self) -> str:
        answer = self._process.stdout.readline().strip()
        if not answer:
            self._process.wait()
            self._said.seek(0)
            raise AssertionError(self._said.read().decode())
        return answer

    def close(self) -> None:
        self._process.communicate()
        self._said.close()
