"""The integer control variables of the MPI in use, read and written through MPI's tool interface (MPI_T).

An MPI chooses the algorithm of a collective by such variables. mpi4py has no door to them, so this goes through
ctypes to the library that mpi4py has already loaded; it opens no other.
"""

import contextlib
import ctypes
import re


class Unavailable(Exception):
    """The MPI has no such variable, or refuses to have it changed while it runs."""


class Control:
    """Reads and writes control variables by name; `with control.values({...})` sets some and puts them back."""

    def __init__(self, library_path):
        try:
            self._library = ctypes.CDLL(library_path)
            provided = ctypes.c_int()
            self._call("MPI_T_init_thread", 0, ctypes.byref(provided))
        except (OSError, AttributeError) as problem:
            raise Unavailable(f"no MPI tool interface: {problem}") from problem

    def _call(self, function, *arguments):
        code = getattr(self._library, function)(*arguments)
        if code:
            raise Unavailable(f"{function} returned {code}")

    def _index(self, name):
        index = ctypes.c_int(-1)
        try:
            self._call("MPI_T_cvar_get_index", name.encode(), ctypes.byref(index))
        except Unavailable:
            raise Unavailable(f"this MPI has no variable {name}") from None
        return index

    @contextlib.contextmanager
    def _handle(self, name):
        handle, count = ctypes.c_void_p(), ctypes.c_int()
        self._call("MPI_T_cvar_handle_alloc", self._index(name), None, ctypes.byref(handle), ctypes.byref(count))
        try:
            yield handle
        finally:
            self._call("MPI_T_cvar_handle_free", ctypes.byref(handle))

    def read(self, name):
        """The value of an integer (or boolean) variable."""
        room = ctypes.create_string_buffer(1024)  # a boolean is one byte, and a foreign type must not overrun
        with self._handle(name) as handle:
            self._call("MPI_T_cvar_read", handle, room)
        return int.from_bytes(room.raw[:4], "little", signed=True)

    def write(self, name, value):
        """Sets an integer (or boolean) variable; raises Unavailable if it does not hold the value afterwards."""
        if self.read(name) == value:
            return
        with self._handle(name) as handle, contextlib.suppress(Unavailable):
            self._call("MPI_T_cvar_write", handle, ctypes.byref(ctypes.c_int(value)))
        if self.read(name) != value:
            raise Unavailable(f"this MPI does not let {name} be changed while it runs")

    def description(self, name):
        """The variable's text, in which MPICH lists its choices."""
        texts = [ctypes.create_string_buffer(65536) for _ in range(2)]
        lengths = [ctypes.c_int(65536) for _ in range(2)]
        verbosity, binding, scope = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        datatype, enumeration = ctypes.c_void_p(), ctypes.c_void_p()
        self._call(
            "MPI_T_cvar_get_info", self._index(name), texts[0], ctypes.byref(lengths[0]), ctypes.byref(verbosity),
            ctypes.byref(datatype), ctypes.byref(enumeration), texts[1], ctypes.byref(lengths[1]),
            ctypes.byref(binding), ctypes.byref(scope),
        )  # fmt: skip
        return texts[1].value.decode(errors="replace")

    def choice(self, name, word):
        """The number of a choice that MPICH describes as a line `word - meaning`, counted from 0 in that order."""
        words = choices(self.description(name))
        if word not in words:
            raise Unavailable(f"{name} of this MPI knows no {word!r}")
        return words.index(word)

    @contextlib.contextmanager
    def values(self, wanted):
        """Sets the variables of a dict in order, and puts the old values back in reverse order."""
        old = []
        try:
            for name, value in wanted.items():
                old.append((name, self.read(name)))
                self.write(name, value)
            yield
        finally:
            for name, value in reversed(old):
                self.write(name, value)


def choices(description):
    """The words of the lines `word - meaning` of a variable's description, in order."""
    return re.findall(r"^[ \t]*(\w+)[ \t]+- ", description, re.MULTILINE)
