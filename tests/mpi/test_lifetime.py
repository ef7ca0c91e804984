"""Objects come and go: what they hold of the MPI is given back, and what is kept is bounded."""

import gc
import sys

import numpy as np
import pytest
from mpi4py import MPI
from ranks import TIMEOUT, bytes_of, errors, everywhere, works

import gqallreduce as gq
from gqallreduce import function
from gqallreduce.runtime import plans
from gqallreduce.transport import waiting

pytestmark = pytest.mark.mpi


def make(comm, scheme="direct/onebit/ef"):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)


def test_a_closed_object_refuses_calls_and_the_others_go_on(comm):
    one, other = make(comm), make(comm)
    works(comm, one)
    before = bytes_of(one.residual("after"))
    one.close()
    one.close()
    assert everywhere(comm, one, np.ones(5, np.float32), key="w")[0] is gq.Error
    assert bytes_of(one.residual("after")) == before
    works(comm, other)
    works(comm, make(comm))


def test_an_object_is_a_context_manager(comm):
    with make(comm) as allreduce:
        works(comm, allreduce)
    with pytest.raises(gq.Error, match="close"):
        allreduce(np.ones(5, np.float32), key="w")


def test_objects_of_a_communicator_may_be_opened_and_closed_again_and_again(comm):
    """More often than the MPI has communicators (MPICH: 2048)."""
    mine = comm.Dup()
    array = np.ones(5, np.float32)
    for _ in range(1100 if comm.size < 4 else 50):
        with gq.Allreduce("direct/raw", comm=mine, timeout=TIMEOUT) as allreduce:
            array[:] = 1
            allreduce(array)
            assert (array == comm.size).all()
    mine.Free()


@pytest.mark.parametrize("closed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_communicators_may_come_and_go(comm, closed):
    """Duplicated, used and freed by the user, more often than the MPI has communicators; closed before or not."""
    array = np.ones(5, np.float32)
    for _ in range(1100 if comm.size < 4 else 50):
        mine = comm.Dup()
        array[:] = 1
        if closed:
            with gq.Allreduce("direct/raw", comm=mine, timeout=TIMEOUT) as allreduce:
                allreduce(array)
        else:
            gq.quantized_allreduce(array, "direct/raw", comm=mine)
        assert (array == comm.size).all()
        mine.Free()


@pytest.mark.mpi(min_size=2)
def test_what_is_given_back_and_when(comm):
    """Both duplicates, when an object is made after the user has freed the communicator; not with the last object."""
    mine = comm.Dup()
    one, other = make(mine), make(mine)
    link, control = one.home.link, one.home.control
    one.close()
    works(comm, other)
    other.close()
    assert make(mine).home.link is link
    mine.Free()
    assert control._comm != MPI.COMM_NULL
    make(comm)
    assert control._comm == link.comm == MPI.COMM_NULL


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("last", [False, True])
def test_an_object_that_one_rank_alone_has_closed(comm, last):
    """What the others then call ends by a timeout, and what they sent meets no communicator that is made later."""
    mine = comm.Dup()
    allreduce = make(mine)
    works(comm, allreduce)
    allreduce.timeout = 1
    if comm.rank == (comm.size - 1 if last else 0):
        allreduce.close()
    assert mine.allreduce(allreduce.home.link.comm != MPI.COMM_NULL, MPI.LAND)
    kinds = errors(comm, allreduce, np.ones(5, np.float32), key="w")
    assert {each[0] for each in kinds} == {gq.Error, gq.TimeoutError}, kinds
    MPI.COMM_SELF.Dup().Free()
    works(comm, make(mine))
    mine.Free()


@pytest.mark.mpi(min_size=2)
def test_duplicates_of_which_a_call_was_given_up_are_kept(comm):
    """MPICH delivers what nothing received on it to a new communicator of the same internal number."""
    mine = comm.Dup()
    allreduce = make(mine)
    for key in "ab":
        allreduce(np.ones(50, np.float32), key=key)
    first = allreduce.home.link
    everywhere_mismatch(comm, allreduce)
    later = make(mine).home.link
    assert later is not first
    mine.Free()
    works(comm, make(comm))
    assert MPI.COMM_NULL not in (first.comm, later.comm)


def everywhere_mismatch(comm, allreduce):
    found = errors(comm, allreduce, np.ones(50, np.float32), key="a" if comm.rank else "b")
    assert {each and each[0] for each in found} == {gq.MismatchError}


def test_an_object_whose_communicator_was_freed_says_so(comm):
    mine = comm.Dup()
    allreduce = make(mine)
    works(comm, allreduce)
    mine.Free()
    assert everywhere(comm, allreduce, np.ones(5, np.float32), key="w")[0] is gq.Error
    works(comm, make(comm))
    assert everywhere(comm, allreduce, np.ones(5, np.float32), key="w")[0] is gq.Error
    allreduce.close()


@pytest.mark.mpi(min_size=2)
def test_an_error_in_a_step_is_not_replaced_by_that_of_a_freed_communicator(comm):
    mine = comm.Dup()
    allreduce = make(mine)

    def step():
        with allreduce.step():
            allreduce(np.ones(5, np.float32), key="w")
            mine.Free()
            raise OSError("the disk is full")

    assert everywhere(comm, step)[0] is OSError


def test_a_communicator_with_other_attributes_may_be_freed(comm):
    """MPI deletes the later ones first, and MPICH's list of attributes then still has those that it has freed.

    A look at that list is a segmentation fault if one of those was the last of a block of MPICH's: the first block has
    32 attributes, each further one 1024. MPICH looks for topologies from when the first was made.
    """
    MPI.COMM_SELF.Create_cart([1]).Free()
    kept, later, keyvals = MPI.COMM_SELF.Dup(), MPI.Comm.Create_keyval(), []
    for _ in range(1060):
        mine = MPI.COMM_SELF.Dup()
        allreduce = make(mine, "raw")
        mine.Set_attr(later, None)
        mine.Free()
        assert allreduce.home.freed
        keyvals.append(MPI.Comm.Create_keyval())
        kept.Set_attr(keyvals[-1], None)
    kept.Free()
    for keyval in (*keyvals, later):
        MPI.Comm.Free_keyval(keyval)


def test_a_communicator_that_one_rank_frees_late(comm):
    """Freeing does not wait for other ranks."""
    mine = comm.Dup()
    allreduce = make(mine)
    works(comm, allreduce)
    if comm.rank:
        allreduce.close()
        mine.Free()
    works(comm, make(comm))
    if comm.rank == 0:
        allreduce.close()
        mine.Free()


def test_shapes_without_a_key_do_not_pile_up(comm):
    allreduce = make(comm, "direct/raw")
    sizes = range(10, 10 + 3 * plans.SHAPES_MOST)

    def count():
        return len(allreduce.plans._plans)

    for elements in sizes:
        allreduce(np.ones(elements, np.float32))
    assert count() == plans.SHAPES_MOST
    gc.collect()
    before = sys.getallocatedblocks()
    for elements in sizes:
        allreduce(np.ones(elements, np.float32))
    gc.collect()
    assert sys.getallocatedblocks() - before < 2000
    allreduce(np.ones(sizes[-1], np.float32))


def test_objects_of_the_function_do_not_pile_up(comm):
    mine = comm.Dup()
    for number in range(function.OBJECTS_MOST + 10):
        gq.quantized_allreduce(np.ones(5, np.float32), f"direct/threshold(tau={number + 1})", comm=mine)
    assert gq.cached(mine, "direct/threshold(tau=1)") is None
    assert gq.cached(mine, f"direct/threshold(tau={function.OBJECTS_MOST + 10})") is not None
    mine.Free()


def test_no_residual_is_dropped_to_make_room(comm):
    mine = comm.Dup()
    for number in range(function.OBJECTS_MOST):
        scheme = f"direct/threshold(tau={number + 1})/ef"
        gq.quantized_allreduce(np.ones(5, np.float32), scheme, key="w", comm=mine)
    kind, _ = everywhere(comm, gq.quantized_allreduce, np.ones(5, np.float32), "direct/raw", comm=mine)
    assert kind is gq.Error
    gq.cached(mine, "direct/threshold(tau=3)/ef").close()
    gq.quantized_allreduce(np.ones(5, np.float32), "direct/raw", comm=mine)
    mine.Free()


def test_groups_of_ranks_have_objects_of_their_own(comm):
    """Also while the other groups do something else."""
    mine = comm.Split(comm.rank % 2)
    allreduce = make(mine)
    for _ in range(comm.rank % 2 + 1):
        works(mine, allreduce)
    works(comm, make(comm))
    allreduce.close()
    mine.Free()


def test_requests_that_were_given_up_and_fail_later_are_forgotten(comm):
    """A message that was too long for its receive, say: no error of a later call's.

    The receive names 10 bytes of a room that has all: Open MPI writes past those that it was given.
    """
    mine = MPI.COMM_SELF.Dup()
    sent, room = np.zeros(1000, np.uint8), np.zeros(1000, np.uint8)
    requests = [mine.Irecv([room, 10, MPI.BYTE], 0, 1), mine.Isend([sent, MPI.BYTE], 0, 1)]
    waiting.abandon(requests, (sent, room))
    for _ in range(3):
        works(comm, make(comm))
    assert all(entry[0] is not requests for entry in waiting.abandoned)
    mine.Free()


def test_self_needs_no_messages(comm):
    allreduce = make(MPI.COMM_SELF)
    works(MPI.COMM_SELF, allreduce)
    allreduce.close()
