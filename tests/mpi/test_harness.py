"""The ranks find each other; what happens when they do not is tried from outside, in tests/test_mpi_harness.py."""

import pytest


@pytest.mark.mpi
def test_the_world_has_every_rank_once(comm):
    assert comm.allgather(comm.rank) == list(range(comm.size))


@pytest.mark.mpi(min_size=2)
def test_a_rank_can_be_much_later_than_the_others(comm, request):
    words = request.config.ranks.exchange(f"rank {comm.rank}", patience=60)
    assert words == [f"rank {rank}" for rank in range(comm.size)]
