"""Random bits of different communicators: independent, and the same from run to run."""

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of

import gqallreduce as gq
from gqallreduce.hashing import hash64
from gqallreduce.transport.home import home

SCHEME = "direct/qsgd(bits=2, bucket=512)"
pytestmark = pytest.mark.mpi


def errors_of(comm, values, key="w", **options):
    """What a sum over `comm` adds to the exact one."""
    array = values.copy()
    gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT, **options)(array, key=key)
    return array - values * np.float32(comm.size)


@pytest.mark.mpi(min_size=4)
def test_sums_inside_groups_and_between_their_first_ranks_are_independent(comm):
    """The same key, the default seed: the error of the second sum must not follow that of the first.

    Of 2^18 pairs of independent errors the correlation is within 6.2 / 2^9 of zero but for one run in 10^9.
    """
    inside = comm.Split(comm.rank // 2)
    between = comm.Split(comm.rank % 2)
    values = np.random.default_rng(3).standard_normal(1 << 18).astype(np.float32)
    one, other = errors_of(inside, values), errors_of(between, values)
    assert abs(np.corrcoef(one, other)[0, 1]) < 6.2 / 2**9
    inside.Free()
    between.Free()


@pytest.mark.mpi(min_size=2)
def test_the_bits_are_those_of_the_group_whatever_the_communicator(comm):
    """From run to run communicators are other objects: what counts are their ranks, in order, in COMM_WORLD."""
    values = np.random.default_rng(3).standard_normal(5000).astype(np.float32)
    again, turned = comm.Dup(), comm.Split(0, comm.size - comm.rank)
    first = errors_of(comm, values)
    assert bytes_of(errors_of(again, values)) == bytes_of(first)
    assert bytes_of(errors_of(turned, values)) != bytes_of(first)
    assert bytes_of(errors_of(comm, values, seed=1)) != bytes_of(first)
    assert bytes_of(errors_of(comm, values, key="v")) != bytes_of(first)
    assert home(comm).group == home(again).group == hash64(*range(comm.size))
    assert home(turned).group == hash64(*range(comm.size)[::-1])
    again.Free()
    turned.Free()
