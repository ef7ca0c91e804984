"""States of keys: replaced only when a call has succeeded, several at once; and buffers that are lent again."""

import gc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gqallreduce._kernels import GroupStates, states_fit
from gqallreduce.backends.processor import Host
from gqallreduce.backends.workspace import Workspace
from gqallreduce.hashing import checksum, hash64
from gqallreduce.runtime import memory as kept_states
from gqallreduce.runtime.memory import Memory, Norm, State

HOST = Host()
FORM = ((3,), "C", "float32")


def call(memory, key, values, commit=True):
    """One call that leaves `values` as the residual; returns the residual before it and the State after it."""
    states, norm = memory.next((key,), (FORM,), HOST)
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
    states, _ = memory.next(("w",), (((5,), "C", "float32"),), HOST)
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


@pytest.mark.parametrize("ask", [Norm.__call__, Norm.settle])
def test_a_norm_that_another_thread_has_computed_meanwhile_stays(monkeypatch, ask):
    """That thread may have gone on to write the array, half of which this one has read before."""
    norm = Norm()
    norm.states = {"w": None}

    def overtaken(key, state):
        norm.value, norm.states = 5.0, None
        if ask is Norm.settle:
            raise MemoryError
        return 3.0

    monkeypatch.setattr(kept_states, "_norm", overtaken)
    ask(norm)
    assert norm() == 5.0


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


# --- groups ---

KEYS = "abcdef"
CALLS = st.lists(
    st.one_of(
        st.tuples(
            st.just("call"), st.permutations(KEYS).flatmap(lambda keys: st.integers(1, 6).map(lambda n: keys[:n]))
        ),
        st.tuples(st.just("again"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["failed", "apart"]), st.sampled_from([KEYS[:3], KEYS[3:], KEYS])),
        st.tuples(st.sampled_from(["flush", "forget"]), st.sampled_from(KEYS)),
        st.tuples(st.sampled_from(["stage", "keep", "drop"]), st.none()),
    ),
    max_size=30,
)


@example([("call", "abcd"), ("stage", None), ("call", "a"), ("call", "abcd"), ("again", 0)], True)
@given(CALLS, st.booleans())
def test_states_of_groups_are_those_of_each_key(calls, feedback):
    """Whatever is called, in whichever grouping, within steps or not, against a dict of (calls, residual)."""
    memory, known, staged, value, names = Memory(), {}, None, 0, list(KEYS[:3])
    for what, keys in calls:
        now = known if staged is None else staged
        if what in ("call", "again", "failed", "apart"):
            names = names if what == "again" else list(keys)
            states, _ = memory.next(tuple(names), (FORM,) * len(names), HOST, feedback, apart=what == "apart")
            assert list(states) == names
            assert len(states) == len(states.values()) == len(names)
            assert what != "apart" or type(states) is dict
            for key, state in states.items():
                value += 1
                before = now.get(key, known.get(key, (0, 0)))
                assert state is states[key]
                assert state.step == before[0] + 1
                if feedback:
                    assert (state.spare == before[1]).all()
                    state.residual[:] = value
                if what != "failed":
                    now[key] = (state.step, value if feedback else 0)
            if what != "failed":
                memory.commit(states)
                assert memory.holds(states)
            assert memory.holds(dict(states.items())) == (what != "failed")
        elif what == "flush" and keys in memory:
            memory.commit({keys: memory.zeroed(keys)})
            now[keys] = ({**known, **now}[keys][0], 0)
        elif what == "forget" and staged is None:
            memory.forget(keys)
            known.pop(keys, None)
        elif what == "stage" and staged is None:
            memory.stage()
            staged = {}
        elif what in ("keep", "drop") and staged is not None:
            memory.unstage(keep=what == "keep")
            known, staged = {**known, **(staged if what == "keep" else {})}, None
        now = {**known, **(staged or {})}
        assert memory.states.keys() == now.keys()
        assert list(memory) == (sorted(now) if feedback else [])
        for key, (step, residual) in now.items():
            assert (memory.get(key).step, memory.get(key).form) == (step, FORM)
            assert memory.get(key) is memory.get(key)
            assert not feedback or (memory.residual(key) == residual).all()


def test_a_group_that_is_called_again_is_kept_in_one_piece():
    """No State is made of its keys, and no array."""
    memory, arrays = Memory(), set()
    for step in range(1, 6):
        states, _ = memory.next(tuple("abc"), (FORM,) * 3, HOST)
        assert type(states) is GroupStates
        for state in states.values() if step > 3 else ():
            arrays |= {id(state.residual), id(state.spare)}
        memory.commit(states)
    assert len(arrays) == 6
    assert [state.step for state in memory.states.values()] == [5] * 3


def test_keys_of_a_group_that_has_learned_or_is_halfway_are_kept_apart():
    memory = Memory()
    for change in (lambda state: state.knowing({"levels": 1}), lambda state: state.halved()):
        states, _ = memory.next(tuple("abc"), (FORM,) * 3, HOST)
        memory.commit({key: change(state) for key, state in states.items()})
        before = memory.get("b")
        assert (before.learned, before.halfway) == (change(before).learned, change(before).halfway)
        for _ in range(2):
            states, _ = memory.next(tuple("abc"), (FORM,) * 3, HOST)
            assert states["b"].learned == before.learned
            memory.commit(states)


def test_a_group_of_another_form_does_not_fit():
    memory, other = Memory(), ((5,), "C", "float32")
    memory.commit(memory.next(tuple("abc"), (FORM,) * 3, HOST)[0])
    assert states_fit(tuple("abc"), (FORM,) * 3, memory.kept, memory.kept_in_step)
    assert states_fit(tuple("abd"), (FORM, FORM, other), memory.kept, memory.kept_in_step)
    assert not states_fit(tuple("abc"), (FORM, FORM, other), memory.kept, memory.kept_in_step)
    assert not states_fit(("c",), (other,), memory.kept, memory.kept_in_step)


class Key(str):
    """Its hash cannot be found once `left` of them have been."""

    left = None
    __slots__ = ()

    def __hash__(self):
        if Key.left is not None:
            if Key.left == 0:
                raise MemoryError
            Key.left -= 1
        return str.__hash__(self)

    def __eq__(self, other):
        return str.__eq__(self, other)


def states_of(memory):
    """key -> (calls, residual)."""
    return {str(key): (state.step, state.residual.tobytes()) for key, state in memory.states.items()}


def called(groups, staged=(), last=None):
    """A Memory after calls of these groups, and others in a step that is not over; States that are not committed."""
    memory, states = Memory(), None
    for number, keys in enumerate((*groups, *staged, *filter(None, [last]))):
        if staged and number == len(groups):
            memory.stage()
        states, _ = memory.next(tuple(map(Key, keys)), (FORM,) * len(keys), HOST)
        for state in states.values():
            state.residual[:] = number
        if number < len(groups) + len(staged):
            memory.commit(states)
    return memory, states


CHANGES = {
    "a group in place of keys": {"groups": ("AB", "CD", "EF", "GH", "IJ", *"abcdefgh"), "last": "abcdefgh"},
    "a group in place of groups": {"groups": ("abcd", "efgh"), "last": "cdef"},
    "a group again": {"groups": ("abcd", "efgh"), "last": "abcd"},
    "a step of other groups": {"groups": ("abcd", "efgh"), "staged": ("ab", "cdef", "gh")},
    "a step of new keys": {"groups": ("abcd",), "staged": ("xyz", "abcd", *"uvw")},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_whole_or_nothing(what):
    """Wherever it fails."""
    options = CHANGES[what]

    def change(memory, states):
        if memory.staging:
            memory.unstage(keep=True)
        else:
            memory.commit(states)

    before = states_of(called(options["groups"])[0])
    memory, states = called(**options)
    change(memory, states)
    after = states_of(memory)
    assert after != before
    for left in range(1000):
        memory, states = called(**options)
        Key.left = left
        try:
            change(memory, states)
        except MemoryError:
            Key.left = None
            if memory.staging:
                memory.unstage(keep=False)
            assert states_of(memory) == before
        else:
            break
        finally:
            Key.left = None
    assert 0 < left < 1000
    assert states_of(memory) == after
