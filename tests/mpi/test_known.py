"""Calls whose plain arrays are known by the last call of their keys: in every respect as if each were looked at."""

import contextlib
import weakref

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, everywhere, inputs

import gqallreduce as gq
from gqallreduce import allreduce as allreduce_module
from gqallreduce.runtime import arguments
from gqallreduce.runtime.repeated import NOT_BEGUN

pytestmark = pytest.mark.mpi
SHAPES = [(40, 30), (7,), (), (0,), (3000,)]
KEYS = [f"w{number}" for number in range(len(SHAPES))]
SCHEMES = [
    "direct/onebit/ef", "ring/qsgd(bits=4)", "direct/adaptive(pi=8)/ef", "direct/terngrad/ef", "randk(ratio=0.1)/ef",
    "direct/raw", "dense",
]  # fmt: skip


@pytest.fixture
def known(monkeypatch):
    """Of each call, was it known? In the order of the calls."""
    found, look, at_once = [], arguments.known, allreduce_module.repeated

    def noted(*given):
        result = look(*given)
        found.append(result is not None)
        return result

    def noted_at_once(*given):
        result = at_once(*given)
        if result is not NOT_BEGUN:
            found.append(True)
        return result

    monkeypatch.setattr(arguments, "known", noted)
    monkeypatch.setattr(allreduce_module, "repeated", noted_at_once)
    return found


def make(comm, scheme, **options):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)


def arrays_of(comm, step, order="C", dtype="float32"):
    return [inputs(comm.size, shape, dtype, order, step)[comm.rank] for shape in SHAPES]


def observed(allreduce):
    last = allreduce.stats.last
    costs = last.messages, last.bytes_sent, last.bytes_received, last.selected, last.ratio, round(last.residual_norm, 4)
    states = allreduce.state_dict()["keys"]
    return costs, {key: (entry["step"], bytes_of(entry.get("residual", ()))) for key, entry in states.items()}


@pytest.mark.parametrize(("order", "dtype"), [("C", "float32"), ("F", "float16"), ("C", "float64")])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_known_calls_give_the_same(comm, scheme, order, dtype, known, monkeypatch):
    runs = []
    for quick in (True, False):
        if not quick:
            monkeypatch.setattr(arguments, "known", lambda *_: None)
            monkeypatch.setattr(allreduce_module, "repeated", lambda *_: NOT_BEGUN)
        allreduce, results = make(comm, scheme), []
        for step in range(3):
            group = arrays_of(comm, step, order, dtype)
            assert allreduce(group, key=KEYS) is group
            results += [[bytes_of(each) for each in group], observed(allreduce)]
        alone = arrays_of(comm, 3, order, dtype)[0]
        for _ in range(2):
            assert allreduce(alone, key=KEYS[0]) is alone
            results += [bytes_of(alone), observed(allreduce)]
        runs.append(results)
    assert known == [False, True, True, False, True]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_flaw_in_a_known_call_is_named(comm, scheme):
    allreduce, errors = make(comm, scheme), []
    for _ in range(2):
        allreduce(arrays_of(comm, 0), key=KEYS)
    for flawed in (arrays_of(comm, 1), tuple(arrays_of(comm, 1))):
        if comm.rank == comm.size - 1:
            flawed[4][17] = np.nan
        with pytest.raises(gq.NonFiniteError) as error:
            allreduce(flawed, key=KEYS)
        errors.append((error.value.rank, error.value.key, error.value.index))
    assert errors == [(comm.size - 1, "w4", 17)] * 2


def test_the_last_form_without_a_key_is_known(comm, known):
    allreduce = make(comm, "direct/qsgd(bits=4)")
    for size in (5, 5, 6, 6, 5, 5):
        array = np.ones(size, np.float32)
        allreduce(array)
        assert (array == comm.size).all()
    assert known == [False, True, False, True, False, True]


def test_a_first_form_that_was_taken_back_is_not_expected(comm, known):
    allreduce = make(comm, "direct/onebit/ef")
    with contextlib.suppress(KeyError), allreduce.step():
        for _ in range(2):
            allreduce(np.ones(6, np.float32), key="w")
        raise KeyError
    for _ in range(2):
        allreduce(np.ones((2, 5), np.float32), key="w")
    assert known == [False, True, False, True]
    assert allreduce.state_dict()["keys"]["w"]["step"] == 2


@pytest.mark.parametrize("size", [2, 6, 5000])
def test_a_group_that_was_taken_back_binds_no_form(comm, size):
    """A key of it is bound to another form since."""
    allreduce, keys = make(comm, "direct/onebit/ef"), ["a", "b"]
    with contextlib.suppress(OSError), allreduce.step():
        allreduce([np.ones(size, np.float32), np.ones(3, np.float32)], key=keys)
        raise OSError
    allreduce(np.ones(5, np.float32), key="a")
    group = [np.ones(size, np.float32), np.ones(3, np.float32)]
    assert everywhere(comm, allreduce, group, key=keys)[0] is ValueError
    allreduce([np.ones(5, np.float32), np.ones(3, np.float32)], key=keys)


def test_a_known_key_keeps_its_form(comm):
    allreduce = make(comm, "direct/onebit/ef")
    for _ in range(2):
        allreduce(np.ones(6, np.float32), key="w")
    for wrong in (np.ones(7, np.float32), np.ones(6, np.float64), np.ones((6, 1), np.float32)):
        assert everywhere(comm, allreduce, wrong, key="w")[0] is ValueError
    array = np.ones(12, np.float32)[::2]
    assert everywhere(comm, allreduce, array, key="w")[0] is ValueError


def test_known_calls_under_way_share_no_memory(comm):
    allreduce = make(comm, "direct/raw")
    memory = np.ones(20000, np.float32)
    for begin in (0, 10000):
        allreduce(memory[begin : begin + 10000], key=f"w{begin}")
    first = allreduce.start(memory[:10000], key="w0")
    with pytest.raises(ValueError, match="buf overlaps a buffer of the call of key 'w0'"):
        allreduce(memory[9999:19999], key="w10000")
    second = allreduce.start(memory[10000:], key="w10000")
    gq.wait_all([first, second])


def test_no_array_is_kept_by_a_known_call(comm):
    allreduce = make(comm, "direct/onebit/ef")
    for _ in range(3):
        array = np.ones(500, np.float32)
        allreduce([array], key=["w"])
        left = weakref.ref(array)
        del array
        assert left() is None


def test_calls_into_other_known_arrays(comm):
    """Bits and residuals as in place, alone and in groups; the source stays as it is."""
    keys, shapes = ["a", "b"], [(300,), (7, 90)]
    inside, outside = (gq.Allreduce("direct/onebit/ef", comm=comm) for _ in range(2))
    for step in range(4):
        given = [inputs(comm.size, shape, step=step)[comm.rank] for shape in shapes]
        expected = [each.copy() for each in given]
        inside(expected, key=keys)
        source, out = [each.copy() for each in given], [np.empty_like(each) for each in given]
        assert outside(source, key=keys, out=out) is out
        for number, key in enumerate(keys):
            np.testing.assert_array_equal(source[number], given[number])
            np.testing.assert_array_equal(out[number], expected[number])
            np.testing.assert_array_equal(outside.residual(key), inside.residual(key))
    assert arguments.known(source, out, keys, outside.plans, outside.memory).into is not None


@pytest.mark.parametrize("case", ["the same", "overlap", "of another shape", "read-only", "under way", "crossed"])
def test_outs_that_are_not_taken_as_known(comm, case):
    allreduce = gq.Allreduce("direct/onebit/ef", comm=comm)
    room = np.ones(250, np.float32)
    source, out = np.ones(100, np.float32), np.empty(100, np.float32)
    for _ in range(3):
        allreduce(source, key="w", out=out)
    if case == "the same":
        assert allreduce(source, key="w", out=source) is source
    elif case == "under way":
        request = allreduce.start(source, key="w", out=out)
        with pytest.raises(ValueError, match="overlaps a buffer of the call of key 'w'"):
            allreduce(out, key="v", out=np.empty_like(out))
        request.wait()
    elif case == "crossed":
        for _ in range(3):
            allreduce([source, out], key=["a", "b"])
        with pytest.raises(ValueError, match="the buffers of keys 'a' and 'b' of the group overlap"):
            allreduce([room[:100], room[100:200]], key=["a", "b"], out=[room[100:200], np.empty(100, np.float32)])
    else:
        wrong = {"overlap": room[50:150], "of another shape": room, "read-only": out.view()}[case]
        wrong.flags.writeable = case != "read-only"
        with pytest.raises((ValueError, gq.MismatchError)):
            allreduce(room[:100], key="w", out=wrong)
    allreduce(source, key="w", out=out)
