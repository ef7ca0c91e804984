"""The GPU's one-bit kernels give the CPU's bytes."""

import numpy as np
import pytest
from devices import both_orders, launcher, needs_device
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain import KINDS, SIZES, floats, regions, same_bits
from serial import region, shifted, status

from gqallreduce import _kernels
from gqallreduce.backends.cuda import onebit as launches
from gqallreduce.backends.cuda.launching import MALFORMED, NOT_FINITE
from gqallreduce.errors import WireError

pytestmark = needs_device
PLACES = [  # n, start, run, parts
    (300000, 0, 4096, 1),
    (200003, 3001, 4096, 1),
    (150000, 77, 40000, 2),
    (70000, 5, 32767, 1),
    (50000, 123, 33, 1),
    (50000, 100, 1024, 1),
    (20000, 7, 1025, 1),
    (3000, 10, 1000, 7),
]
every_place = pytest.mark.parametrize("place", PLACES, ids=str)


def check(x, e, place, descending=False, shift=0):
    """Encode and decode with and without feedback, here and there."""
    geometry, found = region(x.size, *place[1:]), status()
    device = launcher(descending)
    nbytes = _kernels.onebit_nbytes(geometry.table)
    for keep in (False, True):
        wire, expected = shifted(np.full(nbytes, 0xEE, np.uint8), shift), np.empty(nbytes, np.uint8)
        r, new_residual = (shifted(np.full(x.size, 7, np.float32), shift), np.empty_like(x)) if keep else (None, None)
        launches.onebit_encode(device, x, e, r, wire, geometry, found)
        assert _kernels.onebit_encode(x, e, new_residual, expected, geometry.table) == 0
        assert same_bits(wire, expected)
        assert not keep or same_bits(r, new_residual)
    for scale, add in ((1.0, False), (0.3, False), (1.0, True)):
        y, expected = shifted(x, shift), x.copy()
        launches.onebit_decode(device, wire, y, geometry, scale, add, found)
        if add:
            _kernels.onebit_decode_add(wire, expected, geometry.table)
        else:
            _kernels.onebit_decode(wire, expected, geometry.table, scale)
        assert same_bits(y, expected)
    assert found[0] == 0


@pytest.mark.races
@both_orders
@every_place
def test_large_regions_cut_anywhere(place, descending):
    x, e = floats(1, place[0]), floats(2, place[0])
    check(x, None, place, descending)
    check(shifted(x, 0), shifted(e, 0), place, descending, shift=1)


@both_orders
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_one_column_of_any_height(n, kind, descending):
    check(floats(n, n, kind), None, (n, 0, max(n, 1), 1), descending)
    check(shifted(floats(n, n, kind), 0), shifted(floats(n + 1, n, kind), 0), (n, 0, max(n, 1), 1), descending)


@given(regions(), st.integers(0, 100), st.sampled_from(KINDS), st.booleans(), st.integers(0, 3))
@examples(60)
def test_any_region(place, seed, kind, feedback, shift):
    n = place[0]
    check(shifted(floats(seed, n, kind), shift), floats(seed + 1, n, kind) if feedback else None, place, shift=shift)


@pytest.mark.parametrize("flaw", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [PLACES[1], PLACES[4]], ids=str)
def test_a_value_that_is_not_finite_is_reported(place, flaw):
    x, geometry, found = floats(1, place[0]), region(*place), status()
    wire = np.empty(_kernels.onebit_nbytes(geometry.table), np.uint8)
    x[x.size * 2 // 3] = flaw
    launches.onebit_encode(launcher(), x, None, None, wire, geometry, found)
    assert found[0] == NOT_FINITE


@given(regions(), st.data())
def test_any_bytes_are_read_as_the_cpu_reads_them(place, data):
    geometry, found = region(*place), status()
    nbytes = _kernels.onebit_nbytes(geometry.table)
    wire = np.frombuffer(data.draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8)
    ours, theirs = np.ones(geometry.size, np.float32), np.ones(geometry.size, np.float32)
    launches.onebit_decode(launcher(), wire, ours, geometry, 1.0, False, found)
    try:
        _kernels.onebit_decode(wire, theirs, geometry.table)
    except WireError:
        assert found[0] == MALFORMED
    else:
        assert found[0] == 0
        assert same_bits(ours, theirs)
