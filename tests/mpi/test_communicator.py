"""What `comm` may be, and that everything else is refused where it is given."""

import numpy as np
import pytest
from mpi4py import MPI
from ranks import TIMEOUT, works

import gqallreduce as gq
from gqallreduce.coding.layout import Form
from gqallreduce.runtime import plans
from gqallreduce.scheduling.topology import apart
from gqallreduce.transport import link
from gqallreduce.transport.communicator import require_intracommunicator

pytestmark = pytest.mark.mpi
USES = {
    "check": require_intracommunicator,
    "object": lambda comm: gq.Allreduce("raw", comm=comm, timeout=TIMEOUT),
    "function": lambda comm: gq.quantized_allreduce(np.ones(3, np.float32), "raw", comm=comm),
    "cached": lambda comm: gq.cached(comm, "raw"),
}
every_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@pytest.fixture
def inter(comm):
    """An intercommunicator of the ranks with even and with odd numbers."""
    half = comm.Split(comm.rank % 2)
    made = half.Create_intercomm(0, comm, 1 - comm.rank % 2, tag=3)
    yield made
    made.Free()
    half.Free()


@every_use
@pytest.mark.mpi(min_size=2)
def test_an_intercommunicator_is_refused_in_both_groups(inter, use):
    with pytest.raises(TypeError, match=r"intercommunicator, expected an mpi4py communicator .*Merge\(\)"):
        use(inter)


@pytest.mark.mpi(min_size=2)
def test_an_intercommunicator_by_another_name_is_refused(inter):

    with pytest.raises(TypeError, match="intercommunicator"):
        require_intracommunicator(MPI.Comm(inter))


@pytest.mark.mpi(min_size=2)
def test_what_merge_makes_of_it_is_taken(comm, inter):
    merged = inter.Merge()
    buf = np.ones(3, np.float32)
    gq.Allreduce("ring/raw", comm=merged, timeout=TIMEOUT)(buf)
    assert (buf == comm.size).all()
    merged.Free()


@every_use
@pytest.mark.parametrize("wrong", [3, "world", np.ones(3), object], ids=repr)
def test_what_is_no_communicator_is_refused_by_its_type(comm, use, wrong):
    with pytest.raises(TypeError, match=rf"got comm of type {type(wrong).__name__}, expected an mpi4py communicator"):
        use(wrong)


@every_use
def test_a_communicator_that_is_null_or_freed_is_refused(comm, use):

    freed = comm.Dup()
    freed.Free()
    for wrong in (MPI.COMM_NULL, freed):
        with pytest.raises(ValueError, match="got comm COMM_NULL"):
            use(wrong)


def test_none_is_the_world_and_intracommunicators_of_every_kind_are_taken(comm):

    assert require_intracommunicator(None) is MPI.COMM_WORLD
    topology = comm.Create_cart([comm.size])
    for each in (comm, MPI.COMM_SELF, topology):
        assert require_intracommunicator(each) is each
    topology.Free()


def test_the_topology_is_alike_on_all_ranks(comm, monkeypatch):
    """Ranks whose hosts have one name share it; it is part of the signature of calls."""
    monkeypatch.setattr(link.MPI, "Get_processor_name", lambda: f"host {comm.rank // 2}")
    own = comm.Dup()
    try:
        allreduce = gq.Allreduce("direct/raw", comm=own, timeout=TIMEOUT)
        works(own, allreduce)
        assert allreduce.home.link.topology.hosts == tuple(rank // 2 * 2 for rank in range(comm.size))
        agreed = allreduce.plans.find(("after", (Form((39,), "C", "float32"),)))
        elsewhere = plans.Plans(allreduce.scheme, comm.rank, apart(comm.size), False, allreduce.number)
        other = elsewhere.propose(("after", (Form((39,), "C", "float32"),)), 0, allreduce.home.group, False)
        assert (agreed.signature != other.signature) == (comm.size > 1)
    finally:
        own.Free()
