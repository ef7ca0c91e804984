"""A rank is late: another one has given up calls that have not begun here."""

import numpy as np
import pytest
from ranks import TIMEOUT, everywhere, works

import gqallreduce as gq
from gqallreduce.transport.progress import Progress

SIZE = 39  # that of `works`
pytestmark = pytest.mark.mpi(min_size=2)


def start_all_and_be_interrupted(monkeypatch, objects):
    """Rank 0, of calls that no other rank has begun."""

    def interrupted(*_):
        raise KeyboardInterrupt

    requests = [each.start(np.ones(SIZE, np.float32), key="w") for each in objects]
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            requests[0].wait()
    for request in requests[1:]:
        with pytest.raises(gq.Error, match="given up"):
            request.wait()


@pytest.mark.parametrize("catches", [0, 1, 2])
def test_calls_that_were_given_up_before_they_began_here_raise_an_error(comm, monkeypatch, catches):
    """Each for itself, whether the others go on to the next one or all ranks make new objects at once."""
    objects = [gq.Allreduce("ring/onebit/ef", comm=comm, timeout=TIMEOUT) for _ in range(3)]
    for each in objects:
        works(comm, each, key="w")
    comm.barrier()
    if comm.rank == 0:
        start_all_and_be_interrupted(monkeypatch, objects)
    comm.barrier()
    if comm.rank:
        for each in objects[: catches + 1]:
            with pytest.raises(gq.Error, match=r"rank 0 failed in the middle of a call; this rank was in .*'w'"):
                each(np.ones(SIZE, np.float32), key="w")
    for each in objects[: catches + 1]:
        assert everywhere(comm, each, np.ones(SIZE, np.float32), key="w")[0] is gq.Error  # it cannot be used any more
    made = [gq.Allreduce("ring/onebit/ef", comm=comm, timeout=TIMEOUT) for _ in range(2)]
    for each in made:
        works(comm, each)


def test_a_call_after_those_that_were_given_up_makes_a_new_connection(comm, monkeypatch):
    """Its object had no call under way anywhere, and goes on."""
    *objects, other = (gq.Allreduce("ring/onebit/ef", comm=comm, timeout=TIMEOUT) for _ in range(3))
    for each in (*objects, other):
        works(comm, each, key="w")
    comm.barrier()
    if comm.rank == 0:
        start_all_and_be_interrupted(monkeypatch, objects)
    comm.barrier()
    if comm.rank:
        for each in objects:
            with pytest.raises(gq.Error):
                each(np.ones(SIZE, np.float32), key="w")
    works(comm, other, key="w")
