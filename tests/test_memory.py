"""States of keys: replaced only when a call has succeeded, several at once; and buffers that are lent again."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gqallreduce.backends.processor import Host
from gqallreduce.backends.workspace import Workspace
from gqallreduce.hashing import checksum, hash64
from gqallreduce.runtime.memory import Memory, State

HOST = Host()
FORM = ((3,), "C", "float32")


def call(memory, key, values, commit=True):
    """One call that leaves `values` as the residual; returns the residual before it and the State after it."""
    states, norm = memory.next([key], [FORM], HOST)
    after = states[key]
    residual = after.spare.copy()
    after.residual[:] = values
    if commit:
        memory.commit({key: after})
        memory.last_norm = norm  # as Statistics keep it
    return residual, after


def test_a_new_key_has_a_residual_of_zeros_once_a_call_has_succeeded():
    memory = Memory()
    residual, after = call(memory, "w", 0, commit=False)
    assert residual.dtype == after.residual.dtype == np.float32
    assert not residual.any()
    assert "w" not in memory
    assert memory.get("w") is None
    memory.commit({"w": after})
    assert "w" in memory
    assert (memory.get("w").form, memory.get("w").step) == (FORM, 1)


def test_what_was_written_is_the_residual_after_a_commit_only():
    memory = Memory()
    call(memory, "w", [1, 2, 3])
    residual, failed = call(memory, "w", 7, commit=False)
    np.testing.assert_array_equal(residual, [1, 2, 3])
    np.testing.assert_array_equal(memory.residual("w"), [1, 2, 3])
    assert memory.holds({"w": memory.get("w")})
    assert not memory.holds({"w": failed})
    residual, _ = call(memory, "w", 9)
    np.testing.assert_array_equal(residual, [1, 2, 3])
    assert memory.get("w").step == 2


def test_a_call_takes_no_new_array_once_there_are_two():
    memory = Memory()
    arrays = {id(call(memory, "w", step)[1].residual) for step in range(6)}
    assert len(arrays) == 2


def test_a_failed_first_call_leaves_nothing():
    """Also no form: the next first call may have another shape."""
    memory = Memory()
    call(memory, "w", 1, commit=False)
    states, _ = memory.next(["w"], [((5,), "C", "float32")], HOST)
    assert states["w"].spare.shape == (5,)


def test_keys_are_apart_and_sorted():
    memory = Memory()
    for key in ("w", "b", "a"):
        call(memory, key, ord(key))
    assert list(memory) == ["a", "b", "w"]
    assert memory.residual("b")[0] == ord("b")
    with pytest.raises(KeyError):
        memory.residual("c")


def test_a_residual_may_be_loaded_and_set_to_zero():
    memory = Memory()
    memory.commit({"w": State(FORM, 4, None, np.array([4, 5, 6], np.float32), None, HOST)})
    zeroed = memory.zeroed("w")
    np.testing.assert_array_equal(memory.residual("w"), [4, 5, 6])
    memory.commit({"w": zeroed})
    assert not memory.residual("w").any()
    assert memory.get("w").step == 4


def test_calls_of_a_step_take_effect_together_or_not_at_all():
    memory = Memory()
    call(memory, "a", 1)
    for keep in (False, True):
        memory.stage()
        for value in (2, 3, 4):  # a key may be called again and again
            call(memory, "a", value)
        call(memory, "b", 5)
        assert memory.residual("a")[0] == 4
        memory.unstage(keep)
        assert memory.residual("a")[0] == (4 if keep else 1)
        assert memory.get("a").step == (4 if keep else 1)
        assert ("b" in memory) == keep


def test_a_norm_that_is_kept_is_that_of_its_own_call():
    memory = Memory()
    kept = []
    for value in range(1, 6):
        call(memory, "w", value)
        kept.append(memory.last_norm)
    assert [norm() for norm in kept] == pytest.approx([value * 3**0.5 for value in range(1, 6)])


def test_norms_of_keys_that_were_called_apart_are_kept_when_they_are_called_together():
    memory, kept = Memory(), []
    for value in range(1, 9):
        if value % 4:
            for number, key in enumerate("abc"):
                call(memory, key, 10 * value + number)
                kept.append((memory.last_norm, (10 * value + number) * 3**0.5))
        else:
            for _ in range(2):
                states, norm = memory.next(tuple("abc"), (FORM,) * 3, HOST)
                for state in states.values():
                    state.residual[:] = value
                memory.commit(states)
                kept.append((norm, value * 3))
    assert [norm() for norm, _ in kept] == pytest.approx([expected for _, expected in kept])


def test_a_norm_of_a_step_that_was_undone_is_kept_too():
    memory = Memory()
    call(memory, "w", 1)
    memory.stage()
    kept = []
    for value in (2, 3, 4):
        call(memory, "w", value)
        kept.append(memory.last_norm)
    memory.unstage(keep=False)
    for value in (5, 6):
        call(memory, "w", value)
    assert [norm() for norm in kept] == pytest.approx([value * 3**0.5 for value in (2, 3, 4)])


def test_a_norm_that_is_not_kept_is_not_computed(monkeypatch):
    memory = Memory()
    monkeypatch.setattr("gqallreduce.runtime.memory.sum_of_squares", lambda *_: pytest.fail("computed"))
    for value in range(5):
        call(memory, "w", value)
        gc.collect()


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
