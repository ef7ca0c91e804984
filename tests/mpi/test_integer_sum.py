"""The schedule `mpi`: integers that MPI's own allreduce adds. The results are those of `allgather`."""

from time import monotonic

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, errors, everywhere, inputs, sum_that_mpi_fails, works

import gqallreduce as gq
from gqallreduce.codecs.thc import THC
from gqallreduce.runtime.preparation import KernelCalls
from gqallreduce.transport.dense import Summing

pytestmark = pytest.mark.mpi
TEXTS = ["thc", "thc(bits=8, rotate=False, clip=0)", "terngrad(clip=1.5)", "threshold(tau=0.4)"]
every_text = pytest.mark.parametrize("text", TEXTS)


def both(comm, text, **options):
    return [gq.Allreduce(f"{way}/{text}", comm=comm, timeout=TIMEOUT, **options) for way in ("mpi", "allgather")]


@every_text
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 33), (70_001,)], ids=str)
def test_results_and_residuals_are_those_of_allgather(comm, text, dtype, shape):
    by_mpi, by_us = both(comm, f"{text}/ef", average=True)
    for step in range(3):
        mine = inputs(comm.size, shape, dtype, step=step)[comm.rank]
        assert bytes_of(by_mpi(mine.copy(), key="w")) == bytes_of(by_us(mine.copy(), key="w"))
        assert bytes_of(by_mpi.residual("w")) == bytes_of(by_us.residual("w"))
        assert by_mpi.stats.last.saturated == by_us.stats.last.saturated
    assert len(set(comm.allgather(bytes_of(by_mpi.residual("w"))))) > 1 or comm.size == 1 or not np.prod(shape)


@every_text
def test_a_group_is_one_sum(comm, text):
    shapes, keys = [(5,), (40, 3), (), (9000,)], ["a", "b", "c", "d"]
    by_mpi, by_us = both(comm, f"{text}/ef")
    for step in range(2):
        mine = [inputs(comm.size, shape, step=10 * step + at)[comm.rank] for at, shape in enumerate(shapes)]
        got, expected = (
            by_mpi([each.copy() for each in mine], key=keys),
            by_us([each.copy() for each in mine], key=keys),
        )
        assert [bytes_of(each) for each in got] == [bytes_of(each) for each in expected]
        assert [bytes_of(by_mpi.residual(key)) for key in keys] == [bytes_of(by_us.residual(key)) for key in keys]


@pytest.mark.parametrize(("bits", "itemsize"), [(4, 1), (8, 2)])
def test_integers_are_as_narrow_as_the_sum_allows(comm, bits, itemsize):
    allreduce = gq.Allreduce(f"mpi/thc(bits={bits})", comm=comm, timeout=TIMEOUT)
    allreduce(np.ones(1000, np.float32), key="w")
    last, most = allreduce.stats.last, comm.size * THC(bits=bits).steps
    expected = np.dtype("int8" if most <= 127 else "int16").itemsize * 1001  # and the number of ranks with a flaw
    assert (last.bytes_sent, last.messages) == (expected if comm.size > 1 else 0, 0)
    assert last.ratio == (4000 / expected if comm.size > 1 else 1.0)
    assert last.scheme.startswith(f"mpi/thc(bits={bits}")
    assert expected == itemsize * 1001 or comm.size == 1


@every_text
def test_what_is_not_finite_is_named_and_nothing_changes(comm, text):
    allreduce = gq.Allreduce(f"mpi/{text}/ef", comm=comm, timeout=TIMEOUT)
    allreduce(np.ones(50, np.float32), key="w")
    before = bytes_of(allreduce.residual("w"))
    for rank in range(comm.size):
        array = np.ones(50, np.float32)
        array[[31, 40]] = [np.inf, np.nan] if comm.rank >= rank else 1
        kind, said = everywhere(comm, allreduce, array, key="w")
        assert (kind, said["rank"], said["key"], said["index"]) == (gq.NonFiniteError, rank, "w", 31)
        assert bytes_of(allreduce.residual("w")) == before
    works(comm, allreduce, key="other")


def test_a_sum_that_leaves_the_buffers_range_names_no_rank(comm):
    allreduce = gq.Allreduce("mpi/thc(rotate=False, clip=0)", comm=comm, timeout=TIMEOUT)
    kind, said = everywhere(comm, allreduce, np.full(9, 65000, np.float16), key="w") if comm.size > 1 else (None, None)
    assert comm.size == 1 or (kind, said["rank"]) == (gq.NonFiniteError, None)


def test_calls_under_way_are_added_in_the_order_of_their_starts(comm, monkeypatch):
    """Short ones are ready first on some ranks, long ones on others: MPI wants one order."""
    added, advance, work, ready = [], Summing.advance, KernelCalls.advance, 0.0
    native = Summing.native

    def record(number):
        assert number in added or number > max(added, default=-1)
        added.append(number)

    def in_python(summing, messages):
        record(summing._number)
        advance(summing, messages)

    def in_c(summing):
        found = native(summing)
        if found is not None:
            record(summing._number)
        return found

    def late(calls, messages):
        """The longest is not ready before the others on rank 0."""
        longest = calls._operation.plan.tensors[0].form.size == max(sizes)
        if not longest or comm.rank or monotonic() > ready:
            work(calls, messages)

    monkeypatch.setattr(Summing, "advance", in_python)
    monkeypatch.setattr(Summing, "native", in_c)
    monkeypatch.setattr(KernelCalls, "advance", late)
    by_mpi, by_us = both(comm, "thc/ef")
    sizes = [90_000, 3, 40_000, 700, 1, 20_000]
    for step in range(3):
        ready = monotonic() + 0.2
        mine = [inputs(comm.size, (size,), step=100 * step + at)[comm.rank] for at, size in enumerate(sizes)]
        requests = [by_mpi.start(each.copy(), key=str(at)) for at, each in enumerate(mine)]
        order = requests if comm.rank % 2 else requests[::-1]
        for request in order:
            request.wait()
        for at, (request, each) in enumerate(zip(requests, mine, strict=True)):
            assert bytes_of(request.wait()) == bytes_of(by_us(each.copy(), key=str(at)))


@pytest.mark.mpi(min_size=2)
def test_crossed_calls_are_found_before_a_number_is_added(comm):
    allreduce = gq.Allreduce("mpi/thc/ef", comm=comm, timeout=TIMEOUT)
    for key, size in (("a", 50), ("b", 9000)):
        allreduce(np.ones(size, np.float32), key=key)
    odd = comm.rank == 0
    found = errors(comm, allreduce, np.ones(9000 if odd else 50, np.float32), key="b" if odd else "a")
    assert {each and each[0] for each in found} == {gq.MismatchError}
    works(comm, allreduce, key="a2")


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_does_not_call_is_named(comm):
    allreduce = gq.Allreduce("mpi/terngrad", comm=comm, timeout=1)
    allreduce(np.ones(50, np.float32), key="a")
    if comm.rank:
        with pytest.raises(gq.TimeoutError) as error:
            allreduce(np.ones(50, np.float32), key="a")
        assert set(error.value.ranks) <= set(range(comm.size)) - {comm.rank}
    comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_what_mpi_raises_is_an_error_of_ours(comm, monkeypatch):
    allreduce = gq.Allreduce("mpi/thc/ef", comm=comm, timeout=TIMEOUT)
    allreduce(np.ones(60, np.float32), key="a")
    found = sum_that_mpi_fails(comm, monkeypatch, allreduce)
    assert {each and each[0] for each in found} == {gq.Error}, found
    works(comm, gq.Allreduce("auto/onebit/ef", comm=comm, timeout=TIMEOUT))
