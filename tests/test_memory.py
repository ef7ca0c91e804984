"""What is owed: two arrays per key, swapped only when a call has succeeded; and buffers that are lent again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gqallreduce.hashing import checksum, hash64
from gqallreduce.memory import Memory
from gqallreduce.processor import Host
from gqallreduce.workspace import Workspace

HOST = Host()


def test_a_new_key_owes_nothing():
    memory = Memory()
    owed, owing = memory.open("w", 5, HOST)
    assert "w" in memory
    assert "b" not in memory
    assert owed.dtype == owing.dtype == np.float32
    assert not owed.any()
    assert not np.shares_memory(owed, owing)


def test_what_was_written_is_owed_after_a_commit_only():
    memory = Memory()
    _, owing = memory.open("w", 3, HOST)
    owing[:] = 1, 2, 3
    assert not memory.owed("w").any()
    again, scratch = memory.open("w", 3, HOST)
    assert not again.any()
    assert scratch is owing
    memory.commit("w")
    np.testing.assert_array_equal(memory.owed("w"), [1, 2, 3])
    owed, owing = memory.open("w", 3, HOST)
    owing[:] = 7
    np.testing.assert_array_equal(owed, [1, 2, 3])


def test_keys_are_apart_and_sorted():
    memory = Memory()
    for key in ("w", "b", "a"):
        memory.open(key, 2, HOST)[1][:] = ord(key)
    memory.commit("b")
    assert list(memory) == ["a", "b", "w"]
    assert memory.owed("b")[0] == ord("b")
    assert not memory.owed("w").any()


def test_set_and_clear():
    memory = Memory()
    memory.set("w", np.array([4, 5], np.float32), HOST)
    np.testing.assert_array_equal(memory.open("w", 2, HOST)[0], [4, 5])
    memory.clear("w")
    assert not memory.owed("w").any()
    with pytest.raises(KeyError):
        memory.owed("b")


@given(st.integers(0, 1 << 26))
def test_lent_buffers_are_large_enough_aligned_and_not_wasteful(nbytes):
    buffer = Workspace().take(nbytes)
    assert nbytes <= len(buffer) <= max(1024, nbytes * 1.15)
    assert buffer.dtype == np.uint8
    assert buffer.ctypes.data % 64 == 0


def test_what_was_given_back_is_lent_again_and_nothing_twice():
    workspace = Workspace()
    first, second = workspace.take(5000), workspace.take(5000)
    assert not np.shares_memory(first, second)
    workspace.give(first)
    assert workspace.take(5100) is first
    assert workspace.take(5000) is not second


def test_hashes_are_the_same_on_every_machine():
    assert hash64("w", 1, None, (2, 3)) == hash64("w", 1, None, (2, 3)) == 10198440421891161109
    assert len({hash64("w"), hash64("b"), hash64("w", None), hash64(("w",)), hash64(), hash64(1), hash64("1")}) == 7
    assert checksum(b"abc") != checksum(b"abd")
