"""The GPU's kernels for plain numbers give the CPU's bits."""

import numpy as np
import pytest
from devices import both_orders, launcher, needs_device, same_numbers
from hypothesis import given
from hypothesis import strategies as st
from plain import KINDS, SIZES, floats, same_bits
from serial import shifted, status

from gqallreduce import _kernels
from gqallreduce.backends.cuda import casts as launches
from gqallreduce.backends.cuda.launching import MALFORMED, NOT_FINITE
from gqallreduce.coding import arithmetic
from gqallreduce.errors import WireError

pytestmark = needs_device
FORMATS = {"float16": 0, "bfloat16": 1, "float64": 2, "float32": 3}
ITEMSIZE = {0: 2, 1: 2, 2: 8, 3: 4}
SOME = [pytest.param(n, marks=pytest.mark.races) if n == 4097 else n for n in SIZES]
sent_formats = pytest.mark.parametrize("number", [0, 1, 3], ids=["float16", "bfloat16", "float32"])
buffer_formats = pytest.mark.parametrize("number", [0, 1, 2], ids=["float16", "bfloat16", "float64"])
AWKWARD = np.array([np.nan, np.inf, -np.inf, 65520, 3.4e38, -0.0, 0, 1e-45, -6e-8, 65519], np.float32)


def encode_both(x, e, number, keep, descending=False, shift=0):
    """The CPU's and the device's (flawed, wire, r)."""
    results = []
    for device in (None, launcher(descending)):
        wire = shifted(np.full(ITEMSIZE[number] * x.size, 0xEE, np.uint8), shift)
        r = shifted(np.full(x.size, 7, np.float32), shift) if keep else None
        if device is None:
            flawed = bool(_kernels.plain_encode(x, e, r, wire, number))
        else:
            found = status()
            launches.plain_encode(device, x, e, r, wire, number, found)
            flawed = found[0] == NOT_FINITE
        results.append((flawed, wire, r))
    return results


@sent_formats
@both_orders
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [*SOME, 300001])
def test_values_are_sent_as_the_cpu_sends_them(number, descending, kind, n):
    x, e = floats(n, n, kind), floats(n + 1, n, kind)
    for residual, keep, shift in ((None, False, 0), (e, True, 0), (None, True, 1), (e, False, 3)):
        given_residual = None if residual is None else shifted(residual, shift)
        (bad, wire, r), (flawed, ours, kept) = encode_both(
            shifted(x, shift), given_residual, number, keep, descending, shift
        )
        assert flawed == bad
        if not bad:
            assert same_bits(ours, wire)
            assert not keep or same_bits(kept, r)


@sent_formats
@pytest.mark.parametrize("value", AWKWARD)
def test_what_the_cpu_refuses_is_refused(number, value):
    x = np.zeros(37, np.float32)
    x[29] = value
    (bad, wire, r), (flawed, ours, kept) = encode_both(x, None, number, True)
    assert flawed == bad
    assert bad or (same_bits(ours, wire) and same_bits(kept, r))


@sent_formats
@both_orders
@pytest.mark.parametrize("n", [*SOME, 100003])
def test_what_was_sent_is_read_as_the_cpu_reads_it(number, descending, n):
    wire = np.empty(n * ITEMSIZE[number], np.uint8)
    _kernels.plain_encode(floats(n, n), None, None, wire, number)
    for scale, add, shift in ((1.0, False, 0), (0.25, False, 1), (1.0, True, 3)):
        ours, theirs, found = shifted(np.ones(n, np.float32), shift), np.ones(n, np.float32), status()
        launches.plain_decode(launcher(descending), shifted(wire, shift), ours, number, scale, add, found)
        _kernels.plain_decode(wire, theirs, number, scale, add)
        assert found[0] == 0
        assert same_bits(ours, theirs)


@sent_formats
@given(st.binary(max_size=200), st.sampled_from([1.0, 0.25, -3.0]), st.booleans(), st.integers(0, 3))
def test_any_bytes_are_read_as_the_cpu_reads_them(number, data, scale, add, shift):
    n = len(data) // ITEMSIZE[number]
    wire = shifted(np.frombuffer(data, np.uint8)[: n * ITEMSIZE[number]], shift)
    ours, theirs, found = shifted(np.ones(n, np.float32), shift), np.ones(n, np.float32), status()
    launches.plain_decode(launcher(), wire, ours, number, 1.0 if add else scale, add, found)
    try:
        _kernels.plain_decode(wire, theirs, number, 1.0 if add else scale, add)
    except WireError:
        assert found[0] == MALFORMED
    else:
        assert found[0] == 0
        assert same_bits(ours, theirs)


@buffer_formats
@both_orders
@pytest.mark.parametrize("n", [*SOME, 200003])
def test_buffers_are_cast_as_the_cpu_casts_them(number, descending, n):
    x = floats(n, n, "wide")
    x[: AWKWARD.size] = AWKWARD[:n]
    device, found = launcher(descending), status()
    ours, theirs = (np.empty(n * ITEMSIZE[number], np.uint8) for _ in range(2))
    launches.buffer_narrow(device, x, ours, number, found)
    assert bool(found[0]) == bool(_kernels.narrow(x, theirs, number))
    kind = np.float64 if number == FORMATS["float64"] else np.uint8
    assert same_numbers(ours.view(kind), theirs.view(kind))
    back, expected = np.empty(n, np.float32), np.empty(n, np.float32)
    found = status()
    launches.buffer_widen(device, ours, back, number, found)
    assert bool(found[0]) == bool(_kernels.widen(theirs, expected, number))
    assert same_numbers(back, expected)


@pytest.mark.parametrize("bits", [0x7FF0000000000000, 0x7FF8000000000001, 0x47F0000000000000, 0x47EFFFFFEFFFFFFF, 1])
def test_float64s_at_the_edge_of_float32(bits):
    source = np.array([bits], np.uint64).view(np.uint8)
    ours, theirs, found = np.empty(1, np.float32), np.empty(1, np.float32), status()
    launches.buffer_widen(launcher(), source, ours, 2, found)
    assert bool(found[0]) == bool(_kernels.widen(source, theirs, 2))
    assert same_numbers(ours, theirs)


@pytest.mark.parametrize("n", SOME)
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_added_and_scaled_as_on_the_cpu(n, kind):
    x, e, device = floats(n, n, kind), floats(n + 1, n, kind), launcher()
    for residual in (None, e):
        ours, theirs, found = np.empty_like(x), np.empty_like(x), status()
        launches.buffer_add(device, x, residual, ours, found)
        assert bool(found[0]) == bool(_kernels.add_finite(x, residual, theirs))
        assert same_bits(ours, theirs)
    for factor in (0.25, 3.0, 1e30):
        ours, theirs, found = x.copy(), x.copy(), status()
        launches.buffer_scale(device, ours, factor, ours, found)
        assert bool(found[0]) == bool(_kernels.scale(theirs, factor))
        assert same_bits(ours, theirs)


@pytest.mark.parametrize("n", SOME)
@pytest.mark.parametrize("kind", KINDS)
def test_float64_is_added_and_scaled_as_on_the_cpu(n, kind):
    x, e, device = floats(n, n, kind).astype(np.float64) * 1e200, floats(n + 1, n, kind), launcher()
    for residual in (None, e):
        ours, theirs, found = np.empty_like(x), np.empty_like(x), status()
        launches.wide_add(device, x, residual, ours, found)
        assert bool(found[0]) == arithmetic.add_finite(x, residual, theirs)
        assert same_bits(ours, theirs)
    for factor in (0.25, 1e150):
        ours, theirs, found = np.empty_like(x), x.copy(), status()
        launches.wide_scale(device, x, factor, ours, False, NOT_FINITE, found)
        assert bool(found[0]) == arithmetic.scale(theirs, factor)
        assert same_bits(ours, theirs)
        launches.wide_scale(device, x, 1.0, ours, True, NOT_FINITE, found)
        assert same_bits(ours, theirs + x)


@pytest.mark.parametrize("n", SOME)
def test_subtracted_in_place_or_not(n):
    a, b, device = floats(n, n), floats(n + 1, n), launcher()
    difference = np.empty_like(a)
    launches.buffer_subtract(device, a, b, difference)
    assert same_bits(difference, a - b)
    launches.buffer_subtract(device, a, b, b)
    assert same_bits(b, difference)
