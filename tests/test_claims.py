"""Which function makes a call on a communicator: one at a time (tests/mpi/test_calling_threads.py has threads)."""

import threading

from gqallreduce._kernels import Claims


def test_one_holds_until_it_is_released():
    claims = Claims()
    first, other = claims.take()
    assert other is None
    assert first.thread == threading.get_ident()
    assert claims.take() == (None, first)
    assert claims.holds(first)
    claims.release(first)
    assert not claims.holds(first)
    second, _ = claims.take()
    claims.release(first)
    assert claims.holds(second)


def test_one_that_nothing_refers_to_holds_no_longer():
    claims = Claims()
    first, _ = claims.take()
    del first
    assert claims.take()[1] is None


def test_one_that_is_over_is_replaced_and_ends_nothing_afterwards():
    claims = Claims()
    first, _ = claims.take()
    second, _ = claims.take(first)
    assert claims.take(first) == (None, second)
    del first
    assert claims.holds(second)


def test_it_may_outlive_its_claims():
    claims = Claims()
    claim, _ = claims.take()
    del claims
    assert claim.thread == threading.get_ident()
