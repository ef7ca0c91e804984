"""`auto/` that measures: each try is a lawful call, ranks decide alike, and the fastest is kept."""

import contextlib
import re

import numpy as np
import pytest
from at_once import note_at_once
from ranks import TIMEOUT, alike, errors, inputs, works

import gqallreduce as gq
from gqallreduce import allreduce as allreduce_module
from gqallreduce.runtime import plans, trials
from gqallreduce.runtime.repeated import NOT_BEGUN
from gqallreduce.scheduling import model
from gqallreduce.transport import agreement

pytestmark = pytest.mark.mpi(min_size=2)
SIZE = 1000
CANDIDATES = 2 + model.SCHEDULES_TRIED
TRIES = CANDIDATES + 1  # what is second best once more
CALLS = TRIES * trials.CALLS
SECONDS = {"dense": 3.0, "recursive_doubling": 1.0, "direct": 4.0}  # few ranks or many, the first two are tried
RAW, OTHERS = 2.0, 5.0  # of the exact sum on a schedule of ours, and of what is left


@pytest.fixture
def seconds(monkeypatch):
    """A dict: choice -> seconds that a call of its try seems to take on this rank, or those of each of the two."""
    found, note = dict(SECONDS), trials.Trials.note

    def pretend(self, place, _):
        which, number = place
        taken = seconds_of(self._names[number], found)
        note(self, place, taken[which] if isinstance(taken, tuple) else taken)

    monkeypatch.setattr(trials.Trials, "note", pretend)
    return found


def seconds_of(name, known):
    return known.get(name, RAW if name.endswith("/raw") else OTHERS)


def make(comm, scheme="auto/onebit/ef", **options):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)


def call(allreduce, array, key="w"):
    """Sums a copy; (the sum, what ran, why)."""
    last = allreduce(array.copy(), key=key), allreduce.stats.last
    return last[0], last[1].scheme, last[1].reason


def settled(comm, allreduce, key="w"):
    """After the last try."""
    array = inputs(comm.size, SIZE)[comm.rank]
    for _ in range(CALLS + 1):
        found = call(allreduce, array, key)
    return found


@pytest.mark.parametrize(
    "scheme", ["auto/onebit/ef", "auto/qsgd(bits=4)", "auto/topk/ef", "auto/terngrad/ef", "auto/raw"]
)
def test_each_try_is_a_lawful_call(comm, scheme):
    """Replicas are alike, and with feedback nothing is lost when what runs changes from call to call."""
    allreduce, found = make(comm, scheme), set()
    mine = inputs(comm.size, SIZE)
    given, got = np.zeros(SIZE), np.zeros(SIZE)
    for _ in range(2 * CALLS):
        result, ran, reason = call(allreduce, mine[comm.rank])
        assert alike(comm, result)
        assert alike(comm, repr((ran, reason)))
        found.add(ran)
        given += np.sum(mine, axis=0, dtype=np.float64)
        got += result
    assert len(found) == CANDIDATES - (scheme == "auto/raw")  # of which each schedule is exact
    assert reason.startswith("measured: ")
    if allreduce.scheme.feedback:
        left = np.sum(comm.allgather(allreduce.residual("w").astype(np.float64)), axis=0)
        assert np.allclose(got + left, given, rtol=0, atol=1e-4 * np.abs(given).max())


def test_the_fastest_is_kept(comm, seconds):
    _, ran, reason = settled(comm, make(comm))
    assert ran.startswith("recursive_doubling/onebit")
    assert re.match(r"measured: recursive_doubling 1e\+03 ms, \w+/raw 2e\+03 ms, dense 3e\+03 ms", reason)


def test_the_agreement_counts_where_each_call_needs_it_but_not_waiting_for_a_late_rank(comm, seconds, monkeypatch):
    """The shortest agreement of all ranks counts: the rank that comes last does not wait."""
    seconds["dense"] = 3.0, 9.0
    now, agree = [0.0], trials.agree

    def slow(*given):
        now[0] += 0.5 if comm.rank == 1 else 100
        return (yield from agree(*given))

    monkeypatch.setattr(trials, "perf_counter", lambda: now[0])
    monkeypatch.setattr(trials, "agree", slow)
    assert "dense 3.5e+03 ms" in settled(comm, make(comm))[2]


def test_what_was_second_best_is_tried_once_more(comm, monkeypatch):
    """Its first try was disturbed: it is the fastest."""
    usual, times = trials.Trials.note, {"recursive_doubling": [1.5], "direct": [1.7, 1.7, 1.7, 1.0]}

    def pretend(self, place, _):
        left = times.get(self._names[place[1]], [5.0])
        usual(self, place, left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(trials.Trials, "note", pretend)
    _, ran, reason = settled(comm, make(comm))
    assert ran.startswith("direct/onebit")
    assert "direct 1e+03 ms, recursive_doubling 1.5e+03 ms" in reason


def test_the_reason_names_the_profile_by_which_was_tried(comm, seconds, monkeypatch):
    reason = settled(comm, make(comm))[2]
    assert "; tried by the profile of a cluster with 10 Gbit/s links" in reason


@pytest.mark.parametrize("told", [0.0, -1.0, np.nan, -np.inf, 1e-12])
def test_a_time_that_cannot_be_chooses_nothing(comm, seconds, told):
    """Of a rank that is faulty: least of all, since the shortest time would."""
    seconds["dense"] = (told, told) if comm.rank == comm.size - 1 else 3.0
    _, ran, reason = settled(comm, make(comm))
    assert alike(comm, repr((ran, reason)))
    assert not ran.startswith("dense")


@pytest.mark.parametrize("scheme", ["direct/qsgd", "qsgd", "mpi/terngrad", "auto/qsgd"])
def test_rank_0_cannot_choose_what_the_scheme_does_not_have(comm, monkeypatch, scheme):
    """Where a scheme names its schedule there is one choice."""
    allreduce, usual = make(comm, scheme), agreement.begun
    names = allreduce.plans.choices()
    assert len(names) == (1 if "/" in scheme and "auto" not in scheme else len(set(names)))
    assert plans.MPI_SUM not in names or scheme.startswith("mpi/")
    word = len(names) * (1 + 2 * (scheme == "auto/qsgd"))
    monkeypatch.setattr(agreement, "begun", lambda link, hashes, step, _: usual(link, hashes, step, word))
    found = {kind for kind, _ in errors(comm, allreduce, np.ones(SIZE, np.float32), key="w")}
    assert gq.WireError in found
    assert found <= {gq.WireError, gq.Error}, found  # another rank may have told it first
    monkeypatch.undo()
    works(comm, make(comm, scheme))


def test_a_first_try_that_failed_is_made_again(comm):
    """As with a loss scale that is too large at first."""
    allreduce, mine = make(comm, "auto/qsgd"), inputs(comm.size, SIZE)[comm.rank]
    for number in range(CALLS + CANDIDATES + 2):
        array = mine.copy()
        if number < 3:
            array[0] = np.inf
            errors(comm, allreduce, array, key="w")
        else:
            reason = call(allreduce, array)[2]
    assert len(reason.split(",")) == CANDIDATES
    assert reason.startswith("measured: ")


def test_what_is_predicted_to_be_best_is_tried_first(comm):
    """So that calls that are made once run as well as without measuring."""
    allreduce = make(comm)
    _, ran, _ = call(allreduce, np.ones(1 << 20, np.float32))
    forms = next(iter(allreduce.plans._trials))[1]
    best, _ = model.choose(allreduce.scheme.codec, allreduce.plans.topology, forms, allreduce.plans.profile)
    assert ran.startswith(best)


def test_what_is_kept_of_shapes_that_come_and_go_is_bounded(comm):
    allreduce = make(comm, "auto/qsgd")
    for size in range(1, 90):
        for _ in range(3):
            allreduce(np.ones(size, np.float32))
    plans = allreduce.plans
    assert len(plans._trials) <= 65
    assert len(plans._plans) <= 65 * 3
    for number in range(540):
        errors(comm, allreduce, np.full(3, np.nan, np.float32), key=f"k{number}")
    assert len(plans._trials) <= 65 + 513


def test_a_group_that_is_forgotten_while_it_is_under_way(comm, monkeypatch):
    """Wherever it ends earlier, it is unknown afterwards."""
    monkeypatch.setattr(plans, "GROUPS_MOST", 4)
    for scheme in ("auto/onebit/ef", "direct/onebit/ef"):
        allreduce = make(comm, scheme)

        def start(number, allreduce=allreduce):
            names = [f"a{number}", f"b{number}"]
            return allreduce.start([np.ones(50, np.float32) for _ in names], key=names)

        for number in range(4):
            for _ in range(CALLS + 2):
                start(number).wait()
        first = start(0)
        if comm.rank == 0:
            first.wait()
        second = start(4)
        first.wait()
        second.wait()
        start(0).wait()
        works(comm, allreduce, key="after")


def test_of_the_first_call_of_a_try_the_slowest_rank_counts(comm, seconds):
    seconds["recursive_doubling"] = 10.0 if comm.rank == comm.size - 1 else 1.0, 10.0
    assert settled(comm, make(comm))[1].endswith("/raw/ef")


def test_of_the_second_call_of_a_try_the_rank_that_waited_least_counts(comm, seconds):
    """Ranks do not begin it together."""
    seconds["recursive_doubling"] = 10.0, 1.0 if comm.rank == comm.size - 1 else 10.0
    assert settled(comm, make(comm))[1].startswith("recursive_doubling/onebit")


def test_a_codec_that_is_hardly_faster_is_not_taken(comm, seconds):
    seconds["recursive_doubling"] = RAW * trials.GAIN + 0.01
    assert settled(comm, make(comm))[1].endswith("/raw/ef")


def test_a_sum_by_mpi_may_be_the_fastest(comm, seconds):
    seconds["dense"] = 0.1
    allreduce = make(comm)
    assert settled(comm, allreduce)[1] == "dense/ef"
    assert call(allreduce, np.ones(SIZE, np.float32))[1] == "dense/ef"


def test_after_some_calls_all_are_tried_again(comm, seconds, monkeypatch):
    monkeypatch.setattr(trials, "AGAIN_LEAST", 3)
    monkeypatch.setattr(trials, "SHARE", 1e9)
    allreduce = make(comm)
    assert settled(comm, allreduce)[1].startswith("recursive_doubling/")
    seconds.update(recursive_doubling=9.0, dense=0.5)
    kept = [call(allreduce, np.ones(SIZE, np.float32))[1] for _ in range(2)]
    assert all(each.startswith("recursive_doubling/") for each in kept)
    assert settled(comm, allreduce)[1] == "dense/ef"


@pytest.mark.native
@pytest.mark.parametrize("best", ["recursive_doubling", "dense"])
@pytest.mark.parametrize("keys", ["w", ["a", "b"]], ids=["one", "group"])
def test_what_is_kept_is_carried_out_at_once(comm, seconds, monkeypatch, keys, best):
    """Also beside ranks that make Calls of theirs: all count alike when to try again. Not of a group by MPI's sum."""
    seconds[best] = 0.5
    monkeypatch.setattr(trials, "AGAIN_LEAST", 5)
    monkeypatch.setattr(trials, "SHARE", 1e9)
    begun, ran = note_at_once(monkeypatch, allreduce_module), []
    at_once = allreduce_module.repeated
    allreduce = make(comm)
    for number in range(3 * (CALLS + 5)):
        slow = number >= CALLS + 5 and (comm.rank + number) % 3 == 0
        monkeypatch.setattr(allreduce_module, "repeated", (lambda *_: NOT_BEGUN) if slow else at_once)
        arrays = [each[comm.rank] for each in (inputs(comm.size, SIZE), inputs(comm.size, 50, step=1))]
        assert alike(comm, allreduce(arrays if keys == ["a", "b"] else arrays[0], key=keys)[0])
        assert alike(comm, repr((allreduce.stats.last.scheme, allreduce.stats.last.reason)))
        ran.append(allreduce.stats.last.scheme)
        if number == CALLS + 4:
            fit = [keys == "w" or not each.startswith("dense") for each in ran]
            agreed = [*range(0, CALLS, trials.CALLS), CALLS]  # the first call of each try, and the one that decides
            assert begun == [each not in agreed and fit[each] for each in range(CALLS + 5)]
            assert ran[-1].startswith(best)


@pytest.mark.native
@pytest.mark.parametrize("odd", [0, 1])
def test_ranks_that_count_otherwise_do_as_rank_0_where_mpi_sums_at_once(comm, seconds, odd):
    """One rank is to try again, or goes on for longer than the others."""
    seconds["dense"] = 0.5
    allreduce = make(comm)
    settled(comm, allreduce)
    (found,) = allreduce.plans._trials.values()
    if comm.rank == odd:
        found.left = 0
    for _ in range(2 * CALLS):
        result, ran, reason = call(allreduce, inputs(comm.size, SIZE)[comm.rank])
        assert alike(comm, result)
        assert alike(comm, repr(ran))
    assert ran.startswith("dense")
    assert reason.startswith("measured: ")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_call_that_fails_does_not_count(comm, seconds, at_once):
    """Not every rank may have begun it."""
    allreduce = make(comm)
    settled(comm, allreduce)
    (found,) = allreduce.plans._trials.values()
    left = found.left
    for number in range(4):
        array = np.full(SIZE, np.nan if number % 2 == 0 and comm.rank == 0 else 1, np.float32)
        with pytest.raises(gq.NonFiniteError) if number % 2 == 0 else contextlib.nullcontext():
            allreduce(array, key="w") if at_once else allreduce.start(array, key="w").wait()
    assert found.left == left - 2


@pytest.mark.parametrize("at_once", [True, False])
def test_a_call_that_is_interrupted_when_it_has_taken_effect_counts(comm, seconds, monkeypatch, at_once):
    """As on the ranks that were not interrupted."""
    if not at_once:
        monkeypatch.setattr(allreduce_module, "repeated", lambda *_: NOT_BEGUN)
    allreduce = make(comm)
    settled(comm, allreduce)
    (found,) = allreduce.plans._trials.values()
    left, commit = found.left, allreduce.memory.commit

    def commit_and_stop(states):
        commit(states)
        raise KeyboardInterrupt

    array = np.ones(SIZE, np.float32)
    if comm.rank == 1:
        allreduce.memory.commit = commit_and_stop
    with pytest.raises(KeyboardInterrupt) if comm.rank == 1 else contextlib.nullcontext():
        allreduce(array, key="w")
    allreduce.memory.commit = commit
    assert found.left == left - 1
    assert alike(comm, call(allreduce, array)[0])


def test_how_long_a_choice_is_kept_follows_from_what_trying_costs(comm, seconds):
    allreduce = make(comm)
    settled(comm, allreduce)
    (found,) = allreduce.plans._trials.values()
    others = [seconds_of(name, SECONDS) for name in _tried(allreduce)]
    assert found.left == pytest.approx(trials.CALLS * sum(others) / trials.SHARE / min(others), abs=2)


def _tried(allreduce):
    form = next(iter(allreduce.plans._trials))[1]
    return model.candidates(allreduce.scheme.codec, allreduce.plans.topology, form, allreduce.plans.profile)


@pytest.mark.parametrize("key", ["w", None])
def test_a_try_that_fails_on_all_ranks_changes_nothing(comm, key):
    """Its time is not known, the next one goes on."""
    allreduce = make(comm, "auto/qsgd")
    for number in range(CALLS + 3):
        array = inputs(comm.size, SIZE)[comm.rank]
        if number in (1, CALLS):
            array[3] = np.nan if comm.rank == 0 else 1
            assert {each[0] for each in errors(comm, allreduce, array, key=key)} == {gq.NonFiniteError}
        else:
            result, ran, _ = call(allreduce, array, key)
            assert alike(comm, result)
            assert alike(comm, ran)


def test_an_invalid_call_of_one_rank_during_the_tries(comm):
    """The others learn of it, and the tries go on though ranks have counted differently."""
    allreduce = make(comm)
    for number in range(CALLS + 2):
        if number == 4:
            wrong = np.ones(SIZE, np.int32 if comm.rank == comm.size - 1 else np.float32)
            errors(comm, allreduce, wrong, key="w")
        result, ran, _ = call(allreduce, inputs(comm.size, SIZE)[comm.rank])
        assert alike(comm, result)
        assert alike(comm, ran)
    works(comm, allreduce, key="other")


def test_calls_in_flight_that_are_waited_for_in_another_order_on_each_rank(comm):
    allreduce = make(comm)
    for turn in range(CALLS + 4):
        arrays = [inputs(comm.size, SIZE, step=number)[comm.rank] for number in range(3)]
        requests = [allreduce.start(array, key=f"w{number}") for number, array in enumerate(arrays)]
        for request in requests if (turn + comm.rank) % 2 else reversed(requests):
            request.wait()
        assert all(alike(comm, array) for array in arrays)


def test_groups_are_measured_as_one(comm):
    allreduce = make(comm)
    for _ in range(CALLS + 2):
        arrays = [np.full(size, comm.rank + 1.0, np.float32) for size in (30, 500)]
        allreduce(arrays, key=["a", "b"])
        assert all(alike(comm, array) for array in arrays)
    assert allreduce.stats.last.reason.startswith("measured: ")


def test_ranks_of_which_one_does_not_measure_are_told_apart(comm, monkeypatch):
    if comm.rank == 0:
        monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
    allreduce = make(comm)
    found = errors(comm, allreduce, np.ones(SIZE, np.float32), key="w")
    assert {(kind, more["field"]) for kind, more in found} == {(gq.MismatchError, "scheme")}


def test_a_loaded_state_is_measured_anew(comm):
    allreduce = make(comm)
    settled(comm, allreduce)
    allreduce.load_state_dict(allreduce.state_dict())
    assert call(allreduce, np.ones(SIZE, np.float32))[2].startswith("a try")


def test_a_wrong_word_in_the_environment(comm, monkeypatch):
    monkeypatch.setenv("GQALLREDUCE_AUTO", "guess")
    with pytest.raises(ValueError, match="expected measure or model"):
        make(comm)
