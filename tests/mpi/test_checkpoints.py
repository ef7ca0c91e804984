"""Checkpoints that travel: to other numbers of ranks, and through files."""

import contextlib
import errno
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, inputs

import gqallreduce as gq

pytestmark = pytest.mark.mpi
SCHEMES = [
    "direct/onebit/ef",
    "direct/adaptive(pi=8)/ef",
    "direct/alq(bits=3)/ef",
    "direct/powersgd(rank=2)/ef",
    "ring/raw",
]
SHAPE = (24, 18)


@pytest.fixture
def folder(comm):
    made = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
    yield made / "saved"
    comm.Barrier()


@contextlib.contextmanager
def some(comm, size):
    """A communicator of the first ranks, None on the others."""
    made = comm.Split(0 if comm.rank < size else 1, comm.rank)
    yield made if comm.rank < size else None
    made.Free()


def make(comm, scheme, **options):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)


def train(allreduce, comm, steps):
    results = []
    for step in steps:
        arrays = [inputs(comm.size, SHAPE, step=2 * step + number)[comm.rank] for number in range(2)]
        allreduce(arrays, key=["a", "b"])
        results += [bytes_of(each) for each in arrays]
    return results


def residuals(comm, allreduce):
    """Their sums over ranks, in float64."""
    state = allreduce.state_dict()["keys"]
    own = {key: np.asarray(entry.get("residual", 0), np.float64) for key, entry in state.items()}
    everyone = comm.allgather(own)
    return {key: sum(each[key] for each in everyone) for key in own}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_states_of_the_same_ranks_go_on_bit_by_bit(comm, scheme):
    first, second = make(comm, scheme), make(comm, scheme)
    train(first, comm, range(3))
    second.load_state_dict(comm.allgather(first.state_dict())[::-1])  # in any order
    assert train(first, comm, range(3, 5)) == train(second, comm, range(3, 5))


def travel(part, scheme, saved, expected, steps):
    """Go on from states, if there are any; (states of all ranks, sums of residuals) at the end."""
    with make(part, scheme) as allreduce:
        if saved is not None:
            allreduce.load_state_dict(saved)
            found = residuals(part, allreduce)
            for key, total in expected.items():
                np.testing.assert_allclose(found[key], total, atol=1e-5)
            learned = [str(entry.get("learned")) for entry in allreduce.state_dict()["keys"].values()]
            assert len(set(part.allgather(str(learned)))) == 1
        results = train(allreduce, part, steps)
        assert len(set(part.allgather(str(results)))) == 1
        return part.allgather(allreduce.state_dict()), residuals(part, allreduce)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_sum_of_residuals_travels_to_other_numbers_of_ranks(comm, scheme):
    """All ranks, fewer, one, and back to all; what was learned is the same on all ranks, also new ones."""
    sizes = [comm.size, max(1, comm.size - 1), 1, comm.size]
    saved, expected, steps = None, None, 0
    for size in sizes:
        with some(comm, size) as part:
            if part is not None:
                saved, expected = travel(part, scheme, saved, expected, range(steps, steps + 2))
        saved, expected = comm.bcast(saved), comm.bcast(expected)
        steps += 2
        assert {entry["step"] for entry in saved[0]["keys"].values()} == {steps}


def changed(states, rank, **values):
    return [{**each, **(values if each["rank"] == rank else {})} for each in states]


def test_unfit_lists_are_refused(comm):
    allreduce = make(comm, "direct/onebit/ef")
    train(allreduce, comm, range(2))
    states, before = comm.allgather(allreduce.state_dict()), str(allreduce.state_dict())
    other = make(comm, "direct/onebit/ef")
    train(other, comm, range(1))
    last = comm.size - 1
    wrong = {
        "expected one of each rank": [[], [None], [3], [{**states[0], "rank": 5}]],
        "state has seed": [changed(states, last, seed=9)] if last else [],
        "state has other keys": [[*states[:last], other.state_dict() | {"rank": last}]] if last else [],
        "ranks, expected all": [[{**states[0], "size": 17}]],
    }
    for message, all_states in wrong.items():
        for each in all_states:
            with pytest.raises(ValueError, match=message):
                allreduce.load_state_dict(each)
            assert str(allreduce.state_dict()) == before


# --- files ---

RULES = "b=ring/raw; *=direct/onebit/ef"


def reducer_of(comm, rules=RULES):
    return gq.Reducer(rules, comm=comm, timeout=TIMEOUT)


def step_of(reducer, comm, step):
    named = {key: inputs(comm.size, SHAPE, step=2 * step + n)[comm.rank] for n, key in enumerate("ab")}
    reducer(named)
    return {key: bytes_of(each) for key, each in named.items()}


def test_files_go_on_bit_by_bit(comm, folder):
    first, second = reducer_of(comm), reducer_of(comm)
    for step in range(2):
        step_of(first, comm, step)
        gq.save(folder, first)
    gq.load(str(folder), second)
    assert step_of(first, comm, 2) == step_of(second, comm, 2)
    comm.Barrier()
    assert len(list(folder.iterdir())) == comm.size + 1  # of the last save alone


def test_files_travel_to_other_numbers_of_ranks(comm, folder):
    for step, size in enumerate((comm.size, 1, comm.size)):
        with some(comm, size) as part:
            if part is not None:
                with reducer_of(part) as reducer:
                    if (folder / "manifest.json").exists():
                        gq.load(folder, reducer)
                        assert reducer.stats.steps == step
                    step_of(reducer, part, 1)
                    gq.save(folder, reducer)
        comm.Barrier()
    assert len(json.loads((folder / "manifest.json").read_text())["files"]) == comm.size


def damage(folder, how):
    manifest = json.loads((folder / "manifest.json").read_text())
    file = folder / manifest["files"][-1]["file"]
    if how == "a byte":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif how == "the end":
        file.write_bytes(file.read_bytes()[:-5])
    elif how == "a file":
        file.unlink()
    elif how == "the manifest":
        (folder / "manifest.json").write_text("{")
    elif how == "its files":
        (folder / "manifest.json").write_text(json.dumps({**manifest, "files": []}))
    elif how == "its numbers":
        (folder / "manifest.json").write_text(json.dumps({**manifest, "ranks": float(manifest["ranks"])}))
    elif how == "all":
        (folder / "manifest.json").unlink()


@pytest.mark.parametrize("how", ["a byte", "the end", "a file", "the manifest", "its files", "its numbers", "all"])
def test_a_damaged_save_changes_nothing(comm, folder, how):
    reducer = reducer_of(comm)
    step_of(reducer, comm, 0)
    gq.save(folder, reducer)
    if comm.rank == 0:
        damage(folder, how)
    comm.Barrier()
    before = str(reducer.state_dict())
    with pytest.raises(gq.Error, match="could not read its state"):
        gq.load(folder, reducer)
    assert str(reducer.state_dict()) == before
    step_of(reducer, comm, 1)


def test_a_save_of_other_rules_is_refused(comm, folder):
    reducer, other = reducer_of(comm), reducer_of(comm, "*=direct/onebit/ef")
    step_of(reducer, comm, 0)
    gq.save(folder, reducer)
    with pytest.raises(gq.Error, match="state has the schemes"):
        gq.load(folder, other)
    step_of(other, comm, 0)


def test_a_folder_that_cannot_be_written_is_told_to_all(comm, folder):
    if comm.rank == 0:
        folder.write_text("a file")
    comm.Barrier()
    with pytest.raises(gq.Error, match="could not write its state"):
        gq.save(folder, reducer_of(comm))


@pytest.mark.parametrize("what", ["save", "load"])
def test_a_rank_that_does_something_else_is_not_waited_for(comm, folder, what):
    if comm.size == 1:
        pytest.skip("needs another rank")
    reducer = reducer_of(comm)
    step_of(reducer, comm, 0)
    gq.save(folder, reducer)
    doing = (lambda: getattr(gq, what)(folder, reducer)) if comm.rank == 0 else (lambda: step_of(reducer, comm, 1))
    with pytest.raises(gq.Error):
        doing()
    again = reducer_of(comm)
    gq.load(folder, again)
    step_of(again, comm, 1)


def test_an_object_that_refuses_calls_can_be_saved(comm, folder):
    reducer, again = reducer_of(comm), reducer_of(comm)
    step_of(reducer, comm, 0)
    reducer.close()
    gq.save(folder, reducer)
    gq.load(folder, again)
    assert repr(again.state_dict()) == repr(reducer.state_dict())
    with pytest.raises(gq.Error, match="cannot be used any more"):
        gq.load(folder, reducer)


def test_a_save_that_failed_leaves_no_files(comm, folder, monkeypatch):
    """Neither those of ranks that could write, nor the part that one had written."""
    with reducer_of(comm) as reducer:
        step_of(reducer, comm, 0)
        gq.save(folder, reducer)
        comm.Barrier()
        before = sorted(each.name for each in Path(folder).iterdir())
        comm.Barrier()
        (Path(folder) / "0123456789ab.rank0.npz.part").write_bytes(b"of a process that has died")
        comm.Barrier()
        with monkeypatch.context() as patch:
            if comm.rank == comm.size - 1:
                patch.setattr(os, "fsync", _full)
            for _ in range(2):
                with pytest.raises(gq.Error, match="No space left"):
                    gq.save(folder, reducer)
        comm.Barrier()
        found = sorted(each.name for each in Path(folder).iterdir() if not each.name.endswith(".part"))
        assert found == before
        assert len(list(Path(folder).glob("*.part"))) == 1
        comm.Barrier()
        gq.save(folder, reducer)
        comm.Barrier()
        assert len(list(Path(folder).iterdir())) == comm.size + 1


def _full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
