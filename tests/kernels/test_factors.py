"""Products of a matrix and its factors: the order of additions is the same for all instruction sets and threads."""

import math

import numpy as np
import pytest
from contract import same_bits
from simd import LEVELS, simd

from gqallreduce import _kernels


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9, 13])
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("rank", [1, 2, 4, 5, 9])
def test_products_of_factors_are_those_of_the_definition(level, rows, columns, rank):
    """In the order that the header states, in float32, for every instruction set; no more of P and y is touched."""
    with simd(level):
        rng, first, all_rows = np.random.default_rng(rows * columns + rank), 2, rows + 3
        v = rng.standard_normal((rows, columns)).astype(np.float32)
        q = rng.standard_normal((rank, columns)).astype(np.float32)
        p = np.full((rank, all_rows), 7, np.float32)
        _kernels.rows_of_factors(v.reshape(-1), q.reshape(-1), p.reshape(-1), rank, first)
        expected = np.full((rank, all_rows), 7, np.float32)
        for k in range(rank):
            for i in range(rows):
                lanes = np.zeros(16, np.float32)
                for j in range(columns):
                    lanes[j % 16] += v[i, j] * q[k, j]
                for width in (8, 4, 2, 1):
                    lanes[:width] += lanes[width : 2 * width]
                expected[k, first + i] = lanes[0]
        assert same_bits(p, expected)
        total, wanted = q.copy(), q.copy()
        _kernels.columns_of_factors(v.reshape(-1), p.reshape(-1), total.reshape(-1), rank, first)
        for i in range(rows):
            wanted += v[i] * p[:, first + i, None]
        assert same_bits(total, wanted)
        product = np.zeros((rows, columns), np.float32)
        for k in range(rank):
            product += q[k] * p[k, first : first + rows, None]
        y = np.full((rows, columns), np.nan, np.float32)
        _kernels.product_of_factors(p.reshape(-1), q.reshape(-1), y.reshape(-1), rank, first)
        assert same_bits(y, product)
        y = v.copy()
        _kernels.product_of_factors(p.reshape(-1), q.reshape(-1), y.reshape(-1), rank, first, subtract=True)
        assert same_bits(y, v - product)
        y = v.copy()
        _kernels.product_of_factors(p.reshape(-1), q.reshape(-1), y.reshape(-1), rank, first, add=True)
        assert same_bits(y, v + product)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rank", [1, 17, 255, 256, 257, 600])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 31), (9, 33), (17, 64), (8, 100)])
def test_products_of_many_ranks_add_the_sums_of_256_each(level, rank, rows, columns):
    rng, first = np.random.default_rng(rank), 1
    p = rng.standard_normal((rank, rows + 2)).astype(np.float32)
    q = rng.standard_normal((rank, columns)).astype(np.float32)
    v = rng.standard_normal((rows, columns)).astype(np.float32)
    expected = {"set": np.zeros((rows, columns), np.float32), "add": v.copy(), "subtract": v.copy()}
    for begin in range(0, rank, 256):
        some = np.zeros((rows, columns), np.float32)
        for k in range(begin, min(begin + 256, rank)):
            some += q[k] * p[k, first : first + rows, None]
        expected["set"] += some
        expected["add"] += some
        expected["subtract"] -= some
    with simd(level):
        for how, wanted in expected.items():
            y = v.copy()
            also = {} if how == "set" else {how: True}
            _kernels.product_of_factors(p.reshape(-1), q.reshape(-1), y.reshape(-1), rank, first, **also)
            assert same_bits(y, wanted), how
            y, packed = v.copy(), _kernels.pack_factors(q.reshape(-1), rank)
            _kernels.product_of_packed(p.reshape(-1), packed, y.reshape(-1), columns, rank, first, **also)
            assert same_bits(y, wanted), f"{how}, packed"


def test_factors_are_the_same_for_any_number_of_threads():
    rng = np.random.default_rng(1)
    v, q = rng.standard_normal(500 * 301).astype(np.float32), rng.standard_normal(5 * 301).astype(np.float32)
    made = set()
    for threads in (1, 2, 7):
        _kernels.set_threads(threads)
        try:
            p, total, y = np.zeros(5 * 500, np.float32), q.copy(), v.copy()
            _kernels.rows_of_factors(v, q, p, 5, 0)
            _kernels.columns_of_factors(v, p, total, 5, 0)
            _kernels.product_of_factors(p, q, y, 5, 0, subtract=True)
            _kernels.product_of_packed(p, _kernels.pack_factors(q, 5), y, 301, 5, 0, add=True)
        finally:
            _kernels.set_threads(1)
        made.add((p.tobytes(), total.tobytes(), y.tobytes()))
    assert len(made) == 1


@pytest.mark.parametrize(
    ("call", "sizes"),
    [
        (_kernels.rows_of_factors, (30, 10, 6)),
        (_kernels.columns_of_factors, (30, 6, 11)),
        (_kernels.product_of_factors, (6, 10, 35)),
    ],
)
def test_factors_that_do_not_fit_are_refused(call, sizes):
    """Of 3 rows and 5 columns, rank 2, from row 1 on; a block of 6 rows is too long."""
    arrays = [np.zeros(size, np.float32) for size in sizes]
    with pytest.raises(ValueError, match=r"a block of|do not have rank"):
        call(*arrays, 2, 1)
    with pytest.raises(ValueError, match="rank 0"):
        call(*arrays, 0, 0)


def test_packed_factors_that_do_not_fit_are_refused():
    p, packed, y = np.zeros(6, np.float32), _kernels.pack_factors(np.zeros(10, np.float32), 2), np.zeros(15, np.float32)
    _kernels.product_of_packed(p, packed, y, 5, 2, 0)
    for columns, rank, first, problem in [(33, 2, 0, "expected 128"), (5, 3, 0, "packed"), (5, 2, 1, "a block of")]:
        with pytest.raises(ValueError, match=problem):
            _kernels.product_of_packed(p, packed, y, columns, rank, first)
    with pytest.raises(ValueError, match="do not have rank"):
        _kernels.product_of_packed(p, np.zeros(0, np.float32), y, 5, 0, 0)
    with pytest.raises(ValueError, match="does not have rank"):
        _kernels.pack_factors(np.zeros(10, np.float32), 3)


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
@pytest.mark.parametrize("rank", [1, 2, 7])
def test_each_rank_is_scaled_by_a_power_of_two(size, rank):
    rng = np.random.default_rng(size + rank)
    q = rng.standard_normal((rank, size)).astype(np.float32)
    q[rank // 2] *= np.float32(1e-42)  # denormal, or zero
    q[-1, 0] = -(2.0**127)
    expected = q.copy()
    for one in expected:
        largest = float(np.abs(one).max())
        if largest:
            np.ldexp(one, -(math.frexp(largest)[1] + 5), out=one)
    given = q.reshape(-1).copy()
    given.flags.writeable = False
    found = _kernels.scaled_factor(given, rank, 5)
    assert found.tobytes() == expected.tobytes()
    assert _kernels.has_empty_rank(given, rank) == (not q.any(axis=1).all())


def test_a_rank_of_zeros_is_found():
    q = np.ones((3, 5), np.float32)
    q[1] = 0, -0.0, 0, 0, 0
    assert _kernels.has_empty_rank(q.reshape(-1), 3)
    assert not _kernels.has_empty_rank(q.reshape(-1)[:5], 1)
    assert _kernels.scaled_factor(q.reshape(-1), 3, 0)[5:10].tobytes() == q[1].tobytes()
    for call in (_kernels.has_empty_rank, lambda *given: _kernels.scaled_factor(*given, 0)):
        for size, rank in ((10, 3), (0, 1), (3, 0)):
            with pytest.raises(ValueError, match="does not have rank"):
                call(np.zeros(size, np.float32), rank)


@pytest.mark.parametrize("size", [1, 5, 64, 5000])
@pytest.mark.parametrize("rank", [1, 2, 4, 7])
def test_columns_become_orthonormal_or_zero(size, rank):
    rng = np.random.default_rng(size + rank)
    p = rng.standard_normal((rank, size)).astype(np.float32)
    p[rank // 2] *= np.float32(1e-30)
    given = p.astype(np.float64)
    _kernels.orthonormalize(p.reshape(-1), rank)
    kept = min(rank, size)
    gram = p.astype(np.float64) @ p.T.astype(np.float64)
    np.testing.assert_allclose(gram, np.diag([1.0] * kept + [0.0] * (rank - kept)), atol=3e-6)
    if size > rank:  # the same space
        left = given.T - p.T.astype(np.float64) @ (p.astype(np.float64) @ given.T)
        assert (np.linalg.norm(left, axis=0) <= 1e-5 * np.linalg.norm(given, axis=1)).all()
