"""The benchmark of many ranks from end to end. Nothing here looks at a time."""

import argparse

import pytest

from gqallreduce.cli import many_ranks, report

pytestmark = pytest.mark.mpi


def arguments(folder, *words):
    parser = argparse.ArgumentParser()
    many_ranks.add_arguments(parser)
    few = ["--bytes", "4096", "--rounds", "1", "--output", str(folder / "many")]
    return parser.parse_args([*few, *words])


@pytest.mark.parametrize("schedule", ["direct", "ring", "recursive_doubling", "allgather"])
def test_calls_are_measured_beside_their_messages(folder, comm, schedule):
    assert many_ranks.run_on(comm, arguments(folder, "--schemes", f"{schedule}/onebit/ef")) == 0
    if comm.rank == 0:
        machine, (row,) = report.read(folder / "many.jsonl")
        assert machine["ranks"] == row["ranks"] == comm.size
        assert (row["messages"] > 0) == (comm.size > 1)
        assert row["seconds"] > 0
        assert (folder / "many.png").stat().st_size > 0


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("schedule", ["direct", "ring", "recursive_doubling", "halving_doubling", "allgather"])
def test_the_messages_alone_are_as_many_and_as_long_as_the_call_s(comm, schedule):
    import numpy as np

    import gqallreduce as gq

    allreduce = gq.Allreduce(f"{schedule}/onebit/ef", comm=comm, timeout=20)
    for size in (1000, 600_000):  # of one lane, and of more
        allreduce(np.ones(size, np.float32), key=f"w{size}")
        alone = many_ranks.Messages(comm, allreduce.plans.last(f"w{size}").plan)
        alone()
        assert (alone.sent, alone.bytes_sent) == (allreduce.stats.last.messages, allreduce.stats.last.bytes_sent)
        alone.free()


def test_all_ranks_in_one_process(folder, comm):
    if comm.rank > 0:
        return
    row = many_ranks.in_process("direct/onebit/ef", 5, 4096, 1)
    assert row["messages"] == 5 * 4 * 2
    assert 0 < row["kernels"] < row["seconds"] < row["first"]


@pytest.mark.native
@pytest.mark.parametrize("schedule", ["direct", "allgather"])
def test_the_memory_of_a_rank_is_that_of_its_messages_and_running_values(comm, schedule):
    if comm.rank > 0:
        return
    nbytes, ranks = 1 << 18, 32
    memory = many_ranks.in_process(f"{schedule}/qsgd(bits=4)", ranks, nbytes, 2)["memory"]
    message = nbytes // 8 * (ranks - 1)  # 4 bits a value, of all other ranks
    least = message if schedule == "allgather" else message // ranks
    assert least < memory < 1.3 * least + (nbytes // 2 if schedule == "direct" else nbytes)


def test_a_scheme_that_is_none(folder, comm, capsys):
    assert many_ranks.run_on(comm, arguments(folder, "--schemes", "qsdg")) == 2
    assert comm.rank > 0 or "did you mean" in capsys.readouterr().err
