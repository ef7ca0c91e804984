"""Values that ranks of a host read in each other's memory: the same sums, counts and errors as with messages."""

import os
import time

import numpy as np
import pytest
from ranks import Oracle, alike, errors, everywhere, guarded, inputs, seen, works

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.registry import SCHEDULES
from gqallreduce.request import Request
from gqallreduce.runtime import interpreter
from gqallreduce.transport import channel, exposing, failure, progress

pytestmark = pytest.mark.mpi(min_size=2)
SIZE, TIMEOUT = 30011, 20


def exposed_from(allreduce) -> int:
    """From how many bytes on an object's calls expose values, 0 for none."""
    return allreduce.home.link.requests.native.exposed_from


@pytest.fixture
def made(comm, monkeypatch):
    """Makes objects on communicators of their own, so that the environment counts."""
    duplicates, objects = [], []

    def make(scheme, exposes="1", runtime="native", timeout=TIMEOUT):
        """timeout: once all ranks have it."""
        monkeypatch.setenv("GQALLREDUCE_EXPOSE", exposes)
        monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
        duplicates.append(comm.Dup())
        objects.append(gq.Allreduce(scheme, comm=duplicates[-1], timeout=TIMEOUT))
        comm.Barrier()
        objects[-1].timeout = timeout
        return objects[-1]

    yield make
    for allreduce in objects:
        allreduce.close()
    for each in duplicates:
        each.Free()


@pytest.fixture
def fetched(monkeypatch):
    """The flags of what ranks that Python carries out have read."""
    flags, usual = [], channel.Channel.fetched

    def noted(self, message, nbytes):
        flags.append(int(message.buffer[frame.SIZE + 24]))
        return usual(self, message, nbytes)

    monkeypatch.setattr(channel.Channel, "fetched", noted)
    return flags


def test_ranks_of_a_host_can_read_each_other(comm, made):
    token = _kernels.Token()
    if not _kernels.Token.found(os.getpid(), token.address, token.value):
        pytest.skip("this system does not let a process read memory by process_vm_readv")
    assert exposed_from(made("direct/raw", exposes="4096")) == 4096
    assert exposed_from(made("direct/raw", exposes="")) == exposing.FROM
    assert exposed_from(made("direct/raw", exposes="0")) == 0


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_and_counts_are_those_of_messages(comm, made, schedule, dtype):
    oracle, allreduce = Oracle(comm, f"{schedule}/raw"), made(f"{schedule}/raw")
    for step in range(3):
        arrays = inputs(comm.size, SIZE, dtype, step=step)
        expected = oracle(arrays)
        assert seen(allreduce, arrays[comm.rank]) == expected


@pytest.mark.parametrize("runtime", ["native", "python"])
def test_runtimes_read_from_each_other(comm, made, fetched, runtime):
    mine = runtime if comm.rank % 2 else {"native": "python", "python": "native"}[runtime]
    allreduce = made("direct/raw", runtime=mine)
    arrays = inputs(comm.size, SIZE)
    expected = Oracle(comm, "direct/raw")(arrays)
    assert seen(allreduce, arrays[comm.rank]) == expected
    assert bool(fetched) == (exposed_from(allreduce) > 0 and mine == "python")


def test_short_values_are_sent(comm, made, fetched):
    allreduce = made("direct/raw", exposes="100000", runtime="native" if comm.rank == 0 else "python")
    small, large = np.ones(1000, np.float32), np.ones(25000 * comm.size, np.float32)
    allreduce(small, key="a")
    assert not fetched
    allreduce(large, key="b")
    assert bool(fetched) == (comm.rank > 0 and exposed_from(allreduce) > 0)
    assert (large == comm.size).all()


def test_one_rank_that_exposes_nothing_is_enough(comm, made):
    allreduce = made("direct/raw", exposes="0" if comm.rank == comm.size - 1 else "1")
    assert exposed_from(allreduce) == 0
    works(comm, allreduce)


def test_what_is_no_number_of_bytes_is_told(comm, made):
    for text in ("many", "-1", "1.5", str(2**63)):
        found = [kind for kind, _ in errors(comm, made, "direct/raw", exposes=text)]
        assert ValueError in found
        assert set(found) <= {ValueError, gq.Error}, found  # others may have told this rank first


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_flaw_that_a_reader_finds_names_its_owner(comm, made, schedule):
    allreduce, draw = made(f"{schedule}/raw"), np.random.default_rng(comm.size)
    for value in (np.nan, np.inf):
        rank, index = int(draw.integers(comm.size)), int(draw.integers(SIZE))
        array = inputs(comm.size, SIZE)[comm.rank]
        array[index] = value if comm.rank == rank else 1
        kind, told = everywhere(comm, allreduce, array, key="w")
        assert kind is gq.NonFiniteError
        assert (told["rank"], told["index"]) == (rank, index)
    works(comm, allreduce)


def test_calls_that_are_not_waited_for_at_once(comm, made):
    allreduce = made("direct/raw")
    arrays = [inputs(comm.size, SIZE, step=step)[comm.rank] for step in range(6)]
    expected = [sum(inputs(comm.size, SIZE, step=step)[1:], inputs(comm.size, SIZE, step=step)[0]) for step in range(6)]
    requests = [allreduce.start(each, key=str(at)) for at, each in enumerate(arrays)]
    for request in reversed(requests):
        request.wait()
    assert all(np.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(arrays, expected, strict=True))
    assert alike(comm, arrays[3])


@pytest.mark.parametrize("text", ["raw", "raw/ef"])
def test_memory_that_others_cannot_read_is_sent(comm, made, fetched, text):
    """As pinned memory of a device cannot be."""
    allreduce = made(f"direct/{text}", runtime="python" if comm.rank == 0 else "native")
    arrays = inputs(comm.size, SIZE)
    _kernels.pretend_unreadable(True)
    try:
        found = seen(allreduce, arrays[comm.rank].copy())
    finally:
        _kernels.pretend_unreadable(False)
    assert found == Oracle(comm, f"direct/{text}")(arrays)
    assert not fetched


# --- calls that are given up ---


def test_a_late_reader_finds_that_the_values_are_withdrawn(comm, made, monkeypatch):
    """The last rank comes to read when the others have given the call up, and have new values there."""
    late = comm.rank == comm.size - 1
    allreduce = made("direct/raw", timeout=1, runtime="python" if late else "native")
    if not exposed_from(allreduce):
        pytest.skip("values are not exposed here")
    array, usual, read, found = np.ones(SIZE, np.float32), channel.Channel.fetched, [], None

    def after_a_while(*given):
        time.sleep(3)
        read.append(usual(*given))
        return read[-1]

    if late:
        monkeypatch.setattr(channel.Channel, "fetched", after_a_while)
    try:
        allreduce(array, key="w")
    except gq.Error as error:
        found = error
    if not late:
        array.fill(7)  # a sum of these would be wrong
    kinds = comm.allgather(type(found))
    assert set(kinds) == {gq.TimeoutError}, kinds
    assert read == [None] * late
    works(comm, made("direct/raw"))


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["the request is made", "an interrupt is dealt with"])
def test_after_an_interrupt_at_any_place_nothing_is_read(comm, made, monkeypatch, when):
    """The caller may change its buffer at once; the last rank reads late."""
    late, usual = comm.rank == comm.size - 1, channel.Channel.fetched
    allreduce, array = made("direct/raw", timeout=2, runtime="python" if late else "native"), np.ones(SIZE, np.float32)
    read, found = [], None

    def after_a_while(self, message, nbytes):
        time.sleep(0.5)
        read.append((message.source, usual(self, message, nbytes)))
        return read[-1][1]

    if late:
        monkeypatch.setattr(channel.Channel, "fetched", after_a_while)
    comm.Barrier()
    try:
        with monkeypatch.context() as patch:
            if comm.rank == 0 and when == "the request is made":
                patch.setattr(Request, "__init__", interrupt)
            begun = allreduce.start(array, key="w")
            if comm.rank == 0:
                time.sleep(0.2)  # by then its thread has exposed the finished sum, too
                patch.setattr(progress.Progress, "run", interrupt)
                patch.setattr(failure, "named", interrupt)
            begun.wait()
    except (gq.Error, KeyboardInterrupt) as error:
        found = error
    if comm.rank == 0:
        array.fill(1000)
    kinds = comm.allgather(type(found))
    assert kinds[0] is KeyboardInterrupt
    assert all(issubclass(each, gq.Error) for each in kinds[1:]), kinds
    assert all(values is None for source, values in read if source == 0)
    works(comm, made("direct/raw"))


LIES = {
    "nowhere": (0, 0, 5, 0),
    "a mark that is none": (None, None, 5, 0),
    "withdrawn": (None, None, 0, 0),
    "unknown flags": (None, None, None, 64),
    "beyond all memory": (2**64 - 8, None, None, 0),
    "too long": (None, None, None, 0),
}
FOREIGN = ("withdrawn", "unknown flags", "too long")  # seen before anything is read


@pytest.mark.parametrize(
    ("scheme", "name"),
    [*(("direct/raw", name) for name in LIES), ("ring/raw", "nowhere"), ("ring/raw", "too long")],
)
def test_frames_of_exposed_values_that_lie(comm, made, monkeypatch, scheme, name):
    """Of a rank that sends such frames: an error on the ranks that get them, and nothing outside their buffers."""
    lies, outgoing, token = comm.rank == comm.size - 1, interpreter.Outgoing, _kernels.Token()
    allreduce = made(scheme, timeout=1.5, runtime="python" if lies else "native")
    if not exposed_from(allreduce):
        pytest.skip("values are not exposed here")

    def changed(to, data, bound, made=None):
        header = frame.read(data)
        if header.kind == frame.DATA and header.word >= frame.EXPOSURE:
            given = (token.address, token.address, token.value, 0)
            told = [lie if lie is not None else usual for lie, usual in zip(LIES[name], given, strict=True)]
            data = np.zeros(frame.SIZE + frame.EXPOSURE, np.uint8)
            header._replace(kind=frame.EXPOSED, word=header.word + 4 * (name == "too long")).write(data)
            data[frame.SIZE :] = np.array(told, np.uint64).view(np.uint8)
        return outgoing(to, data, bound, made)

    if lies:
        monkeypatch.setattr(interpreter, "Outgoing", changed)
    found = comm.allgather(guarded(allreduce, inputs(comm.size, SIZE)[comm.rank]))[:-1]
    monkeypatch.setattr(interpreter, "Outgoing", outgoing)
    assert all(isinstance(error, gq.Error) for error in found), found
    assert name not in FOREIGN or {type(error) for error in found} == {gq.MismatchError}, found
    works(comm, made(scheme))
