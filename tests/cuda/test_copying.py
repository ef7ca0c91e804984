"""What a device with memory of its own is given, and what comes back: places, overlaps, what must stay as it is."""

import contextlib

import numpy as np
import pytest
from copying import Copying
from serial import shifted


class Recording:
    """A device whose kernel is a function of the copies."""

    def __init__(self, kernel):
        self.kernel, self.given = kernel, None

    def active(self):
        return contextlib.nullcontext()

    def empty(self, nbytes):
        return shifted(np.full(nbytes, 0x55, np.uint8), 0)

    pinned = empty

    def upload(self, target, source):
        target[:] = source

    def fetch(self, array):
        return array.copy()

    def launch(self, family, kernel, blocks, threads, *given):
        self.given = given
        self.kernel(*given)


def launched(kernel, *arguments):
    device = Recording(kernel)
    Copying(device)("family", "kernel", 1, 32, *arguments)
    return device.given


@pytest.mark.parametrize("shift", range(4))
def test_content_goes_there_at_a_like_address_and_comes_back(shift):
    x, y = shifted(np.arange(5, dtype=np.float32), shift), np.zeros(5, np.float32)

    def kernel(x, y, factor):
        y.view(np.float32)[:] = factor * x.view(np.float32)

    given, *_ = launched(kernel, x, y, np.float32(2))
    assert (y == [0, 2, 4, 6, 8]).all()
    assert given.ctypes.data % 16 == x.ctypes.data % 16 == 4 * shift
    assert not np.shares_memory(given, x)


def test_no_array_and_an_empty_one_are_null_and_numbers_stay():
    assert launched(lambda *given: None, None, np.zeros(0), np.uint64(3)) == (None, None, 3)


def test_arrays_that_overlap_are_one_copy():
    whole = np.arange(40, dtype=np.uint8)
    parts = whole[5:20], whole, whole[18:30], whole[5:20]

    def kernel(a, b, c, d):
        assert all(np.shares_memory(b, part) for part in (a, c, d))
        c[:] = 7

    launched(kernel, *parts)
    assert (whole[18:30] == 7).all()
    assert (whole[:18] == np.arange(18)).all()


def test_neighbours_are_apart():
    whole = np.zeros(8, np.uint8)
    a, b = launched(lambda a, b: None, whole[:4], whole[4:])
    assert abs(a.ctypes.data - b.ctypes.data) > 100


@pytest.mark.parametrize("at", [-1, 4])
def test_what_is_written_beside_an_array_is_an_error(at):
    def kernel(a):
        a.base[a.ctypes.data - a.base.ctypes.data + at] = 1

    with pytest.raises(AssertionError, match="kernel writes beside its arrays"):
        launched(kernel, np.zeros(4, np.uint8))


def test_what_is_only_to_be_read_stays():
    with pytest.raises(AssertionError, match="kernel writes to what is only to be read"):
        launched(lambda a: a.fill(1), np.frombuffer(b"four", np.uint8))
