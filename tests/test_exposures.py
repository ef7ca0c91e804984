"""Memory of a process that another one reads: what is exposed, what is not any more, and frames that lie."""

import os
import subprocess
import sys

import numpy as np
import pytest

from gqallreduce import _kernels
from gqallreduce.coding import frame

VALUES = np.arange(100, dtype=np.float32)


@pytest.fixture
def transport():
    return _kernels.Loopback(_kernels.Mailboxes(), 0, exposed_from=1)


def told(token, address=None, mark_address=None, mark=None, flags=0):
    """The bytes of a frame that exposes VALUES, with some words replaced."""
    usual = VALUES.ctypes.data, token.address, token.value, flags
    words = [
        mine if given is None else given for given, mine in zip((address, mark_address, mark), usual, strict=False)
    ]
    return np.concatenate([np.zeros(frame.SIZE, np.uint8), np.array([*words, flags], np.uint64).view(np.uint8)])


def room():
    return np.zeros(VALUES.nbytes, np.uint8)


@pytest.mark.parametrize("flags", range(8))
def test_what_is_exposed_is_read(transport, flags):
    token, into = _kernels.Token(), room()
    mark, own, summed = transport.fetch(1, told(token, flags=flags), into)
    assert into.tobytes() == VALUES.tobytes()
    assert (mark, own, summed) == (token.value if flags & 1 else 0, bool(flags & 2), bool(flags & 4))


def test_what_is_withdrawn_does_not_count(transport):
    token = _kernels.Token()
    exposed = told(token)
    del token
    assert transport.fetch(1, exposed, room()) is None


def test_marks_differ_also_where_their_places_are_used_again(transport):
    found, places, exposed = set(), set(), []
    for _ in range(600):
        token = _kernels.Token()
        found.add(token.value)
        places.add(token.address)
        exposed.append(told(token))
    assert len(found) == 600
    assert len(places) < 600
    assert [transport.fetch(1, each, room()) is not None for each in exposed] == [*[False] * 599, True]


@pytest.mark.parametrize(
    "lie",
    [
        {"mark": 0},
        {"mark": 1},
        {"flags": 8},
        {"flags": 1 << 63},
        {"address": 0},
        {"address": 2**64 - 4},
        {"mark_address": 0},
        {"mark_address": 2**64 - 8},
    ],
)
def test_frames_that_lie_are_read_from_no_memory(transport, lie):
    token = _kernels.Token()
    assert transport.fetch(1, told(token, **lie), room()) is None


@pytest.mark.parametrize("cut", [0, 1, 24, 31])
def test_frames_of_other_lengths_are_none(transport, cut):
    token = _kernels.Token()
    assert transport.fetch(1, told(token)[: frame.SIZE + cut], room()) is None
    assert transport.fetch(1, np.concatenate([told(token), room()]), room()) is None


def test_a_rank_whose_memory_cannot_be_read_is_not_read():
    token = _kernels.Token()
    assert _kernels.Loopback(_kernels.Mailboxes(), 0).fetch(1, told(token), room()) is None


def test_of_another_process_or_none():
    """One that has ended can be read no more."""
    program = (
        "from gqallreduce import _kernels; token = _kernels.Token(); print(token.process, token.address, token.value)"
    )
    words = [sys.executable, "-u", "-c", program + "; input()"]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process, address, value = map(int, other.stdout.readline().split())
    assert process == other.pid
    if not _kernels.Token.found(process, address, value):
        other.communicate("\n")
        pytest.skip("this system does not let a process read memory by process_vm_readv")
    assert not _kernels.Token.found(process, address, value + 1)
    assert not _kernels.Token.found(process, 8, value)
    other.communicate("\n")
    assert not _kernels.Token.found(process, address, value)
    assert _kernels.Token().process == os.getpid()
