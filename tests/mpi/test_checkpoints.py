"""Checkpoints that travel: to other numbers of ranks, and through files."""

import contextlib
import errno
import json
import os
import pickle
import tempfile
import time
from pathlib import Path

import pytest
from mpi4py import MPI
from ranks import TIMEOUT, bytes_of, inputs
from travelling import learned_of, require_same_sums, sizes, some

import gqallreduce as gq
from gqallreduce.models import files

pytestmark = pytest.mark.mpi
SCHEMES = [
    "direct/onebit/ef",
    "direct/adaptive(pi=8)/ef",
    "direct/alq(bits=3)/ef",
    "direct/powersgd(rank=2)/ef",
    "direct/gradiveq(warmup=0, train=1)/ef",
    "direct/topk(ratio=0.1, sums=union, balance=2)/ef",
    "ring/raw",
]
SHAPE = (24, 18)


@pytest.fixture
def folder(comm):
    made = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
    yield made / "saved"
    comm.Barrier()


def make(comm, scheme, **options):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)


def train(allreduce, comm, steps):
    results = []
    for step in steps:
        arrays = [inputs(comm.size, SHAPE, step=2 * step + number)[comm.rank] for number in range(2)]
        allreduce(arrays, key=["a", "b"])
        results += [bytes_of(each) for each in arrays]
    return results


@pytest.mark.parametrize("scheme", SCHEMES)
def test_states_of_the_same_ranks_go_on_bit_by_bit(comm, scheme):
    first, second = make(comm, scheme), make(comm, scheme)
    train(first, comm, range(3))
    second.load_state_dict(comm.allgather(first.state_dict())[::-1])  # in any order
    assert train(first, comm, range(3, 5)) == train(second, comm, range(3, 5))


def travel(part, scheme, saved, steps):
    """Of all ranks of a job that goes on from states, if there are any: states as loaded and at the end, results."""
    with make(part, scheme) as allreduce:
        if saved is not None:
            allreduce.load_state_dict(saved)
        loaded, results = allreduce.state_dict(), train(allreduce, part, steps)
        return [part.allgather(each) for each in (loaded, allreduce.state_dict(), results)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_residuals_and_what_was_learned_travel_to_other_numbers_of_ranks(comm, scheme):
    """The sum of residuals; and on each rank, also a new one, what was learned."""
    saved, steps, learns = None, 0, gq.Scheme.parse(scheme).codec.learns
    for size in sizes(comm):
        found = None
        with some(comm, size) as part:
            if part is not None:
                found = travel(part, scheme, saved, range(steps, steps + 2))
        loaded, after, results = comm.bcast(found)
        if saved is not None:
            require_same_sums(loaded, saved)
        assert all(each == results[0] for each in results)
        saved, steps = after, steps + 2
        assert {entry["step"] for entry in saved[0]["keys"].values()} == {steps}
        assert all((each is not None) == learns for each in learned_of(saved[0]).values())


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


def step_of(reducer, comm, step, shapes=None):
    shapes = shapes or {"a": SHAPE, "b": SHAPE}
    named = {
        key: inputs(comm.size, shape, step=2 * step + n)[comm.rank] for n, (key, shape) in enumerate(shapes.items())
    }
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


class Failing:
    """A communicator on which the last operation of a save fails, after all ranks have made it."""

    def __init__(self, comm, broken):
        self._comm, self._broken, self._calls = comm, broken, 0

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def allgather(self, value):
        found, self._calls = self._comm.allgather(value), self._calls + 1
        if self._calls == 6:  # of three times two
            raise self._broken
        return found


@pytest.mark.parametrize("broken", [MPI.Exception(MPI.ERR_OTHER), pickle.UnpicklingError("bytes of no one")])
def test_a_rank_on_which_mpi_fails_at_the_end_leaves_a_complete_save(comm, folder, monkeypatch, broken):
    first, second, fails = reducer_of(comm), reducer_of(comm), comm.rank == comm.size - 1
    step_of(first, comm, 0)
    error = pytest.raises(gq.Error, match="MPI failed in save") if fails else contextlib.nullcontext()
    with monkeypatch.context() as patch, error:
        patch.setattr(files, "_meet", lambda *_: Failing(comm, broken) if fails else comm)
        gq.save(folder, first)
    gq.load(folder, second)
    assert step_of(first, comm, 1) == step_of(second, comm, 1)


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
    with pytest.raises(gq.Error, match=r"could not read (its state|the manifest)"):
        gq.load(folder, reducer)
    assert str(reducer.state_dict()) == before
    step_of(reducer, comm, 1)


def contents(folder):
    """The content of each rank's file of a save."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return [(folder / each["file"]).read_bytes() for each in manifest["files"]]


def mix(folder, how, earlier):
    """Make a save one of several; `earlier` has the contents of the files of one before."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [folder / each["file"] for each in manifest["files"]]
    if how == "a file of an earlier save":
        files[-1].write_bytes(earlier[-1])
    elif how == "two files swapped":
        for file, content in zip(files[-2:], contents(folder)[:-3:-1], strict=True):
            file.write_bytes(content)
    else:
        manifest["files"][-2:] = manifest["files"][:-3:-1]
        (folder / "manifest.json").write_text(json.dumps(manifest))


def save_mixed(comm, folder, how):
    if comm.size == 1 and "swapped" in how:
        pytest.skip("needs two ranks")
    reducer, earlier = reducer_of(comm), None
    for step in range(2):
        step_of(reducer, comm, step)
        earlier = contents(folder) if step and comm.rank == 0 else None
        comm.Barrier()
        gq.save(folder, reducer)
    if comm.rank == 0:
        mix(folder, how, earlier)
    comm.Barrier()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("a file of an earlier save", "damaged, or of another save"),
        ("two files swapped", "damaged, or of another save"),
        ("two ranks swapped in the manifest", "a file of one save for each"),
    ],
)
def test_a_mixed_save_changes_nothing(comm, folder, how, message):
    save_mixed(comm, folder, how)
    reducer = reducer_of(comm)
    step_of(reducer, comm, 2)
    before = repr(reducer.state_dict())
    with pytest.raises(gq.Error, match=message):
        gq.load(folder, reducer)
    assert repr(reducer.state_dict()) == before
    step_of(reducer, comm, 3)


@pytest.mark.parametrize("fresh", [True, False])
def test_folders_of_ranks_hold_the_same_save_or_are_refused(comm, folder, fresh):
    """As on hosts without a common file system; one has an earlier save."""
    own, reducer, twin = folder / str(comm.rank), reducer_of(comm), reducer_of(comm)
    step_of(reducer, comm, 0)
    gq.save(own, reducer)
    kept = {each: each.read_bytes() for each in own.iterdir()}
    step_of(reducer, comm, 1)
    gq.save(own, reducer)
    if fresh or comm.size == 1:
        gq.load(own, twin)
        assert step_of(reducer, comm, 2) == step_of(twin, comm, 2)
        return
    if comm.rank == comm.size - 1:
        for each in own.iterdir():
            each.unlink()
        for each, content in kept.items():
            each.write_bytes(content)
    with pytest.raises(gq.Error, match=f"rank {comm.size - 1} could not read its state: FileNotFoundError"):
        gq.load(own, twin)
    assert twin.stats.steps == 0


@pytest.mark.parametrize("how", ["a file of an earlier save", "two files swapped"])
def test_a_mixed_save_is_refused_by_another_number_of_ranks(comm, folder, how):
    save_mixed(comm, folder, how)
    with some(comm, max(1, comm.size - 1)) as part:
        if part is not None:
            with reducer_of(part) as reducer:
                with pytest.raises(gq.Error, match="damaged, or of another save"):
                    gq.load(folder, reducer)
                step_of(reducer, part, 0)
                assert reducer.stats.steps == 1


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "other",
    [
        {"a": SHAPE[::-1], "b": SHAPE}, {"a": SHAPE, "b": (24, 19)}, {"b": SHAPE, "c": SHAPE},
        {"a": SHAPE, "b": SHAPE, "c": SHAPE},
    ],
    ids=["another shape", "another shape of a raw one", "another name", "one more"],
)  # fmt: skip
def test_a_save_of_another_model_is_refused_and_training_goes_on(comm, folder, other, known):
    """By `load`, or, where the reducer does not know its tensors yet, by its first step."""
    saved, reducer, twin = (reducer_of(comm) for _ in range(3))
    step_of(saved, comm, 0, other)
    gq.save(folder, saved)
    if known:
        for each in (reducer, twin):
            step_of(each, comm, 1)
        before = repr(reducer.state_dict())
        with pytest.raises(gq.Error, match=r"could not take over its state.* as in this model"):
            gq.load(folder, reducer)
        assert repr(reducer.state_dict()) == before
    else:
        gq.load(folder, reducer)
        with pytest.raises(ValueError, match="as in this model"):
            step_of(reducer, comm, 1)
        step_of(twin, comm, 1)
        gq.save(folder, twin)
        gq.load(folder, reducer)
    assert step_of(reducer, comm, 2) == step_of(twin, comm, 2)
    assert repr(reducer.state_dict()) == repr(twin.state_dict())


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


@pytest.mark.parametrize("what", ["its state", "the manifest"])
def test_after_a_save_that_failed_the_one_before_is_loaded(comm, folder, monkeypatch, what):
    reducer, again = reducer_of(comm), reducer_of(comm)
    step_of(reducer, comm, 0)
    gq.save(folder, reducer)
    saved = repr(reducer.state_dict())
    step_of(reducer, comm, 1)
    with monkeypatch.context() as patch:
        if comm.rank == (0 if what == "the manifest" else comm.size - 1):
            made = iter([os.fsync] if what == "the manifest" else [])
            patch.setattr(os, "fsync", lambda file: next(made, _full)(file))
        with pytest.raises(gq.Error, match=f"could not write {what}: .*No space left"):
            gq.save(folder, reducer)
    comm.Barrier()
    gq.load(folder, again)
    assert repr(again.state_dict()) == saved


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
        (part,) = Path(folder).glob("*.part")
        comm.Barrier()
        os.utime(part, (0, time.time() - 2 * files.LEFT_OVER))
        comm.Barrier()
        gq.save(folder, reducer)
        comm.Barrier()
        assert len(list(Path(folder).iterdir())) == comm.size + 1


def test_a_save_removes_no_files_of_others(comm, folder):
    """Neither those of the user beside it, nor those of another job's save that is under way."""
    with reducer_of(comm) as reducer:
        step_of(reducer, comm, 0)
        gq.save(folder, reducer)
        comm.Barrier()
        others = [f"optimizer.rank{comm.rank}.npz", f"0123456789ab.rank{comm.rank}.npz", "0123456789ab.rank0.npz.part"]
        for name in others:
            (Path(folder) / name).write_bytes(b"of others")
        comm.Barrier()
        gq.save(folder, reducer)
        comm.Barrier()
        assert all((Path(folder) / name).exists() for name in others)
        assert len(list(Path(folder).iterdir())) == comm.size + 1 + 2 * comm.size + 1
        gq.load(folder, reducer)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", ["save", "load"])
def test_a_path_that_is_none_on_one_rank(comm, folder, what):
    with reducer_of(comm) as reducer:
        step_of(reducer, comm, 0)
        gq.save(folder, reducer)
        with pytest.raises(gq.Error, match=rf"rank {comm.size - 1} could not begin: TypeError"):
            getattr(gq, what)(3 if comm.rank == comm.size - 1 else folder, reducer)
        gq.load(folder, reducer)


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_is_interrupted_while_it_writes(comm, folder, monkeypatch):
    with reducer_of(comm) as reducer:
        step_of(reducer, comm, 0)
        gq.save(folder, reducer)
        last = comm.rank == comm.size - 1
        with monkeypatch.context() as patch:
            if last:
                patch.setattr(os, "fsync", _interrupt)
            with pytest.raises(KeyboardInterrupt if last else gq.Error):
                gq.save(folder, reducer)
        gq.load(folder, reducer)


def _interrupt(*_):
    raise KeyboardInterrupt


def _full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
