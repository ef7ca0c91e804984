"""A `launch` for NumPy arrays on a device that has memory of its own: what kernels are given is copied there and back.

Arrays may overlap, or be views of one: what overlaps is one copy. A copy's address is that of the original modulo 16.
The bytes on either side of it must stay as they are.
"""

import ctypes

import numpy as np

MARGIN, FILLING = 256, 0xEE


class Copying:
    """runtime: the device, with the methods of CupyRuntime; guarded: are there bytes on either side of each copy?"""

    def __init__(self, runtime, guarded: bool = True):
        self.runtime, self.margin = runtime, MARGIN if guarded else 0

    def __call__(self, family, kernel, blocks, threads, *arguments):
        arrays = [argument for argument in arguments if isinstance(argument, np.ndarray) and argument.size]
        with self.runtime.active():
            copies = [Copy(self.runtime, self.margin, *place) for place in _places(arrays)]
            given = [_given(argument, copies) for argument in arguments]
            self.runtime.launch(family, kernel, blocks, threads, *given)
            for copy in copies:
                copy.bring_back(kernel)


def _places(arrays) -> list:
    """[begin, end, may it be written?] of the memory of arrays, each address once."""
    places = []
    for array in sorted(arrays, key=_address):
        assert array.flags.c_contiguous
        begin, end, writable = _address(array), _address(array) + array.nbytes, array.flags.writeable
        if places and begin < places[-1][1]:
            places[-1][1:] = max(end, places[-1][1]), writable or places[-1][2]
        else:
            places.append([begin, end, writable])
    return places


def _address(array) -> int:
    return array.__array_interface__["data"][0]


def _given(argument, copies):
    if not isinstance(argument, np.ndarray):
        return argument
    found = [copy.part(argument) for copy in copies if argument.size and copy.begin <= _address(argument) < copy.end]
    return found[0] if found else None


class Copy:
    """Of the host's bytes from `begin` to `end`."""

    def __init__(self, runtime, margin: int, begin: int, end: int, writable: bool):
        self.runtime, self.begin, self.end, self.writable = runtime, begin, end, writable
        self.host = np.frombuffer((ctypes.c_uint8 * (end - begin)).from_address(begin), np.uint8)
        self.first = margin + begin % 16
        self.stop = self.first + end - begin
        self.staging = runtime.pinned(self.stop + margin)
        self.staging[:] = FILLING
        self.staging[self.first : self.stop] = self.host
        self.room = runtime.empty(self.staging.nbytes)
        runtime.upload(self.room, self.staging)

    def part(self, array):
        at = self.first + _address(array) - self.begin
        return self.room[at : at + array.nbytes]

    def bring_back(self, kernel: str) -> None:
        found = self.runtime.fetch(self.room)
        around = found[: self.first], found[self.stop :]
        assert all((each == FILLING).all() for each in around), f"{kernel} writes beside its arrays"
        found = found[self.first : self.stop]
        if not np.array_equal(found, self.host):
            assert self.writable, f"{kernel} writes to what is only to be read"
            self.host[:] = found
