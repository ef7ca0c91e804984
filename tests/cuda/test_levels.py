"""The GPU's kernels of the level codecs give the CPU's bytes."""

import numpy as np
import pytest
from devices import both_orders, launcher, needs_device
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain import KINDS, SIZES, floats, same_bits
from serial import on_device, region, shifted, status

from gqallreduce import _kernels
from gqallreduce.backends.cuda import levels as launches
from gqallreduce.backends.cuda.launching import MALFORMED, NOT_FINITE
from gqallreduce.errors import WireError

pytestmark = needs_device
STREAM = _kernels.Stream(0x123456789ABCDEF0, 513, 7, 0xFFFFFFFF)
LEVELS = {f"{bits} bits": _kernels.Levels.uniform(bits, True) for bits in range(2, 9)}
LEVELS |= {f"{bits} bits without zero": _kernels.Levels.uniform(bits, False) for bits in range(1, 9)}
LEVELS["table of 5"] = _kernels.Levels.table(3, np.array([-1, -0.25, 0, 0.1, 1], np.float32))
LEVELS["table of 200"] = _kernels.Levels.table(8, np.linspace(-1, 1, 200, dtype=np.float32))
# found by their exponents on the host, by a search of the table here
LEVELS["powers of two, 3 bits"] = _kernels.Levels.floating(3, 0, -2, 3)
LEVELS["powers of two, 8 bits"] = _kernels.Levels.floating(8, 0, -126, 127)
LEVELS["powers of two, 5 bits without zero"] = _kernels.Levels.floating(5, 0, -15, 16, False)
every_levels = pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
every_norm = pytest.mark.parametrize("l2", [False, True], ids=["max", "l2"])
PLACES = [  # n, start, bucket
    (100003, 0, 512),
    (60001, 301, 512),
    (60000, 2**40 + 8, 512),
    (50000, 5, 1025),
    (50000, 100, 9000),
    (20000, 3, 2**31 - 1),
    (5000, 2**35 - 2000, 64),
    (3000, 1, 7),
]


def check(x, e, levels, l2, start, bucket, descending=False, shift=0):
    """Encode and decode with and without feedback, here and there."""
    geometry, found, device = region(x.size, start, bucket), status(), launcher(descending)
    table, nbytes = on_device(levels), _kernels.levels_nbytes(geometry.table, levels)
    for keep in (True, False):
        wire, expected = shifted(np.full(nbytes, 0xEE, np.uint8), shift), np.empty(nbytes, np.uint8)
        r, new_residual = (shifted(np.full(x.size, 7, np.float32), shift), np.empty_like(x)) if keep else (None, None)
        found = status()
        launches.levels_encode(device, x, e, r, wire, table, l2, geometry, STREAM, found)
        flawed = _kernels.levels_encode(x, e, new_residual, expected, levels, l2, geometry.table, STREAM)
        assert bool(flawed) == (found[0] == NOT_FINITE)
        if flawed:
            continue
        assert same_bits(wire, expected)
        assert not keep or same_bits(r, new_residual)
    if flawed:
        return
    for scale, add in ((1.0, False), (0.3, False), (1.0, True)):
        y, expected = shifted(x, shift), x.copy()
        launches.levels_decode(device, wire, y, table, geometry, scale, add, found)
        if add:
            _kernels.levels_decode_add(wire, expected, levels, geometry.table)
        else:
            _kernels.levels_decode(wire, expected, levels, geometry.table, scale)
        assert same_bits(y, expected)
    assert found[0] == 0


@every_levels
@every_norm
def test_every_kind_of_levels_with_both_norms(levels, l2):
    n, start, bucket = 10007, 301, 512
    check(floats(1, n), None, levels, l2, start, bucket)
    check(floats(2, n, "wide"), floats(3, n), levels, l2, start, bucket, shift=3)


@pytest.mark.races
@both_orders
@every_norm
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_large_regions_cut_anywhere(place, l2, descending):
    n, start, bucket = place
    check(floats(1, n), floats(2, n), LEVELS["4 bits"], l2, start, bucket, descending)
    check(shifted(floats(1, n), 1), None, LEVELS["3 bits without zero"], l2, start, bucket, descending, shift=1)


@every_norm
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_one_bucket_of_any_size(n, kind, l2):
    check(floats(n, n, kind), None, LEVELS["4 bits"], l2, 0, max(n, 1))
    check(floats(n, n, kind), floats(n + 1, n, kind), LEVELS["2 bits without zero"], l2, 0, max(n, 1))


@given(st.data(), st.integers(0, 400), st.integers(0, 300), st.integers(1, 120), st.sampled_from(KINDS))
@examples(80)
def test_any_region(data, n, start, bucket, kind):
    levels, l2 = LEVELS[data.draw(st.sampled_from(list(LEVELS)))], data.draw(st.booleans())
    shift, feedback = data.draw(st.integers(0, 3)), data.draw(st.booleans())
    x = shifted(floats(n, n, kind), shift)
    check(x, floats(n + 1, n, kind) if feedback else None, levels, l2, start, bucket, shift=shift)


@every_norm
@pytest.mark.parametrize("flaw", [np.nan, np.inf, -np.inf, 3.4e38])
@pytest.mark.parametrize("bucket", [512, 9000])
def test_what_the_cpu_refuses_is_refused(flaw, l2, bucket):
    x = floats(1, 20000)
    x[13333] = flaw
    check(x, None, LEVELS["4 bits"], l2, 5, bucket)


@every_levels
@given(st.data(), st.integers(0, 200), st.integers(0, 200), st.integers(1, 90))
@examples(20)
def test_any_bytes_are_read_as_the_cpu_reads_them(levels, data, n, start, bucket):
    geometry = region(n, start, bucket)
    nbytes = _kernels.levels_nbytes(geometry.table, levels)
    wire = np.frombuffer(data.draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8)
    ours, theirs, found = np.ones(n, np.float32), np.ones(n, np.float32), status()
    launches.levels_decode(launcher(), wire, ours, on_device(levels), geometry, 1.0, False, found)
    try:
        _kernels.levels_decode(wire, theirs, levels, geometry.table)
    except WireError:
        assert found[0] == MALFORMED
    else:
        assert found[0] == 0
        assert same_bits(ours, theirs)
