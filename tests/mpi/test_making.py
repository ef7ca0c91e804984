"""Objects are made on all ranks: what is wrong with the arguments of one rank alone, all learn at once."""

import os

import numpy as np
import pytest
from ranks import TIMEOUT, alike, errors

import gqallreduce as gq
from gqallreduce import allreduce as allreduce_module

pytestmark = pytest.mark.mpi(min_size=2)
WRONG = {
    "scheme": ({"scheme": "nonsense"}, ValueError),
    "scheme of no text": ({"scheme": 7}, TypeError),
    "timeout": ({"timeout": -1}, ValueError),
    "timeout of no number": ({"timeout": "soon"}, TypeError),
    "seed": ({"seed": 1.5}, TypeError),
    "average": ({"average": "perhaps"}, TypeError),
    "check": ({"check": "never"}, ValueError),
    "verify": ({"verify": -2}, ValueError),
    "trace": ({"trace": os.path.join(os.devnull, "no", "file.json")}, NotADirectoryError),
}
WRONG_OF_REDUCERS = {
    "codec": ({"rules": "*=nonsense"}, ValueError),
    "rules": ({"rules": "=="}, ValueError),
    "bucket": ({"bucket": "many"}, ValueError),
    "warmup": ({"warmup": -1}, ValueError),
    "warmup_rules": ({"warmup": 2, "warmup_rules": "*=nonsense"}, ValueError),
    "clip": ({"clip": -1}, ValueError),
    "momentum": ({"momentum": 2}, ValueError),
    "compare_every": ({"compare_every": -1}, ValueError),
    "seed": ({"seed": 1.5}, TypeError),
}


def allreduce_of(comm, changes):
    given = {"scheme": "direct/onebit/ef", "comm": comm, "timeout": TIMEOUT, **changes}
    return gq.Allreduce(given.pop("scheme"), **given)


def reducer_of(comm, changes):
    given = {"rules": "*.bias=raw; *=onebit/ef", "comm": comm, "timeout": TIMEOUT, **changes}
    return gq.Reducer(given.pop("rules"), **given)


def error_of(make, *given):
    """The error of a making on this rank."""
    try:
        make(*given)
    except Exception as error:
        return error
    return None


def require_told(comm, found, kind, wrong: int):
    """Its own error on the wrong rank; one that names that rank on all others."""
    if comm.rank == wrong:
        assert type(found) is kind
    else:
        assert type(found) is gq.MismatchError
        assert (found.field, found.ranks) == ("arguments", (wrong,))


def require_all_is_well(comm):
    """Objects can be made and used."""
    with allreduce_of(comm, {}) as made:
        result = made(np.full(50, comm.rank + 1, np.float32), key="w")
        assert alike(comm, result.tobytes())


@pytest.mark.parametrize("wrong", [0, -1])
@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_of_one_rank(comm, what, wrong):
    (changes, kind), wrong = WRONG[what], wrong % comm.size
    with allreduce_of(comm, {}) as before:
        found = error_of(allreduce_of, comm, changes if comm.rank == wrong else {})
        require_told(comm, found, kind, wrong)
        before(np.ones(50, np.float32), key="w")
        require_all_is_well(comm)


def test_before_any_object_of_the_communicator(comm):
    mine = comm.Dup()
    try:
        found = error_of(allreduce_of, mine, {"scheme": "nonsense"} if comm.rank == 0 else {})
        require_told(comm, found, ValueError, 0)
        require_all_is_well(mine)
    finally:
        mine.Free()


@pytest.mark.parametrize("wrong", [0, -1])
@pytest.mark.parametrize("what", WRONG_OF_REDUCERS)
def test_wrong_arguments_of_one_ranks_reducer(comm, what, wrong):
    (changes, kind), wrong = WRONG_OF_REDUCERS[what], wrong % comm.size
    found = error_of(reducer_of, comm, changes if comm.rank == wrong else {})
    require_told(comm, found, kind, wrong)
    require_all_is_well(comm)


def test_each_rank_has_its_own_error_if_all_are_wrong(comm):
    changes, kind = list(WRONG.values())[comm.rank % len(WRONG)]
    assert type(error_of(allreduce_of, comm, changes)) is kind
    require_all_is_well(comm)


@pytest.mark.parametrize(
    "changes", [{"rules": "*=raw"}, {"rules": "*.bias=raw; *=ring/onebit/ef"}, {"compare_every": 5}]
)
def test_other_rules_on_one_rank(comm, changes):
    found = error_of(reducer_of, comm, changes if comm.rank == comm.size - 1 else {})
    assert type(found) is gq.MismatchError
    assert found.field == "scheme"
    assert comm.size == 2 or found.ranks == (comm.size - 1,)
    assert "rules" in str(found)
    require_all_is_well(comm)


@pytest.mark.parametrize("known", [None, "direct/qsgd(bits=5)", "ring/raw"])
def test_a_function_that_is_wrong_on_one_rank(comm, known):
    """The others make an object, as the first or as one more, or call one that they have."""
    mine = comm.Dup()
    try:
        if known is not None:
            gq.quantized_allreduce(np.ones(9, np.float32), known, key="w", comm=mine)
        scheme = "nonsense" if comm.rank == 0 else "direct/qsgd(bits=5)"
        found = errors(comm, gq.quantized_allreduce, np.ones(9, np.float32), scheme, key="w", comm=mine)
        assert found[0] == (ValueError, {})
        assert {kind for kind, _ in found[1:]} == {gq.MismatchError}
        assert known == "ring/raw" or {each["field"] for _, each in found[1:]} == {"arguments"}
        require_all_is_well(mine)
        again = gq.quantized_allreduce(np.ones(9, np.float32), "direct/raw", key="w", comm=mine)
        assert alike(comm, again.tobytes())
    finally:
        mine.Free()


def test_what_goes_wrong_once_ranks_have_met_is_told_too(comm, monkeypatch):
    """A profile, say, that cannot be read on one rank."""

    def unreadable(jobs):
        raise ValueError("a damaged profile")

    with monkeypatch.context() as patch:
        if comm.rank == 0:
            patch.setattr(allreduce_module, "find", unreadable)
        found = error_of(allreduce_of, comm, {"scheme": "auto/onebit/ef"})
    require_told(comm, found, ValueError, 0)
    require_all_is_well(comm)


def test_the_error_is_raised_though_no_other_rank_comes(comm):
    """After the timeout."""
    if comm.rank == 0:
        assert type(error_of(allreduce_of, comm, {"verify": -2, "timeout": 0.2})) is ValueError
    comm.Barrier()
    require_all_is_well(comm)


def test_a_communicator_that_is_none_is_not_asked(comm):
    """There is no one to tell."""
    assert type(error_of(allreduce_of, 7, {"scheme": "nonsense"})) is ValueError
