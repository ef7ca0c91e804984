"""Particulars of topk: which values are sent, exactly how many, and what their places take."""

import contextlib
import itertools

import numpy as np
import pytest
from contract import KINDS, decode, encode, formed, region, vector
from hypothesis import given, settings
from hypothesis import strategies as st

from gqallreduce import Scheme, WireError, _kernels
from gqallreduce.coding.layout import Form, Grid, Region
from gqallreduce.coding.places import BLOCK, places_bound
from gqallreduce.runtime.local import LocalAllreduce

VARIANTS = [
    "topk(ratio=1.0)",
    "topk(k=7)",
    "topk(ratio=0.3, values=float16)",
    "topk(ratio=0.5, values=qsgd(bits=4, bucket=8))",
    "topk(ratio=0.2, values=qsgd(bits=2, bucket=16, coding=rans))",
    "topk(ratio=0.3, sums=union)",
    "topk(ratio=0.5, values=qsgd(bits=4, bucket=8), sums=union)",
    "topk(ratio=0.3, reuse=3)",
    "topk(ratio=0.2, sums=union, reuse=2, balance=2)",
]
WHOLE = [VARIANTS[1], VARIANTS[3], *VARIANTS[5:]]


def bound(text, size=1000):
    return Scheme.parse(text).codec.bind(Form((size,), "C", "float32"))


def largest(v, k) -> np.ndarray:
    """The places of the k largest nonzero values, by a stable sort: ties go to the first in memory."""
    order = [place for place in np.argsort(-np.abs(v), kind="stable") if v[place] != 0]
    return np.sort(np.array(order[:k], int))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("text", "k"), [("topk(ratio=0.01)", 20), ("topk(k=333)", 333), ("topk(ratio=0.9999)", 1999)])
def test_exactly_the_k_largest_are_sent_as_they_are(text, k, residual, kind):
    codec = bound(text, 2000)
    found = region(codec, (Grid(1), 0, 2000, 2000))
    x = vector(codec, 1, 2000, kind)
    e = vector(codec, 2, 2000, kind) if residual else None
    wire, lost = encode(codec, x, e, found)
    if isinstance(wire, int):
        return
    v = formed(codec, x, e)
    kept = largest(v, k)
    expected = np.zeros(2000, np.float32)
    expected[kept] = v[kept]
    np.testing.assert_array_equal(decode(codec, wire, found), expected)
    np.testing.assert_array_equal(lost, np.where(expected == 0, v, 0))
    assert codec.entries(wire, [found]) == kept.size


def test_of_a_partial_sum_k_is_in_proportion_and_rounded_up():
    codec = bound("topk(k=7)", 1000)
    sent = []
    for size in (1, 142, 143, 500, 1000):
        found = Region(0, size, Grid(1), 1000)
        wire, _ = encode(codec, np.arange(1, size + 1, dtype=np.float32), None, found)
        sent.append(codec.entries(wire, [found]))
    assert sent == [1, 1, 2, 4, 7]


def test_the_largest_of_a_whole_vector_are_sent_wherever_they_are():
    """All of them may lie in one rank's piece."""
    local, gradients = LocalAllreduce("direct/topk(k=50)/ef", 4), np.zeros((4, 400), np.float32)
    gradients[:, 120:170] = 5
    gradients[:, 300:] = 1
    result = local([each.copy() for each in gradients], key="w")[0]
    np.testing.assert_array_equal(result[120:132], 20)
    # The last rank adds its own values of the last quarter as they are, and sends 13 of their sum.
    assert [memory.residual("w")[300:].sum() for memory in local.memory] == [100, 100, 100, 87]


@pytest.mark.parametrize("values", ["raw", "float16", "bfloat16", "qsgd(bits=4)", "mx(format=fp6_e2m3)", "natural"])
def test_values_travel_as_their_codec_sends_them(values):
    x = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    scheme = Scheme.parse(f"topk(ratio=0.1, values={values})")
    y = scheme.decode(scheme.encode(x), 5000)
    kept = largest(x, 500)
    inner = bound(values, 500)
    alone = Region(0, 500, inner.grid(Grid(4096)), 500)
    expected = decode(inner, encode(inner, x[kept], None, alone)[0], alone)
    assert set(np.flatnonzero(y)) <= set(kept.tolist())
    if inner.deterministic:
        np.testing.assert_array_equal(y[kept], expected)
    error = np.linalg.norm(y[kept] - x[kept]) / np.linalg.norm(x[kept])
    assert error <= np.sqrt(inner.omega or 0.01) + 1e-6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topk(k=3, ratio=0.1)", "one of them"),
        ("topk(k=-1)", "k"),
        ("topk(ratio=0.0)", "above 0"),
        ("topk(ratio=2)", "up to 1"),
        ("topk(values=alq)", "does not learn"),
        ("topk(values=1)", "expected a codec"),
        ("topk(values=None)", "expected a codec"),
        ("topk(values='')", "expected codec"),
        ("topk(values=qsgd(bits=f()))", "cannot be read"),
        ("topk(k=True)", "integer"),
        ("topk(reuse=-1)", "integer from 0"),
        ("topk(balance=0.5, sums=union)", "integer from 0"),
        ("topk(balance=2)", "sums=union"),
        ("topk(values=topk)", "expected raw"),
        ("topk(values=terngrad)", "expected raw"),
        ("topk(values=qsdg)", "did you mean 'qsgd'"),
        ("topk(values=qsgd(bit=3))", "did you mean 'bits'"),
    ],
)
def test_refused_options_say_what_is_expected(text, says):
    with pytest.raises(ValueError, match=says):
        Scheme.parse(text)


def test_values_with_quotes_and_without_are_one_scheme():
    one, other = (Scheme.parse(f"topk(values={text})") for text in ("qsgd(bits=3)", "'qsgd( bits = 3 )'"))
    assert one == other
    assert Scheme.parse(one.resolved()) == one
    assert "values=qsgd(bits=3, bucket=512" in one.resolved()


# --- places ---


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 3 * BLOCK + 5), st.floats(0, 1))
def test_places_come_back_in_the_shorter_form(seed, elements, share):
    chosen = np.flatnonzero(np.random.default_rng(seed).random(elements) < share).astype(np.uint32)
    out = np.zeros(places_bound(elements, len(chosen)) + 8, np.uint8)
    nbytes = _kernels.places_write(chosen, elements, out)
    assert nbytes == _kernels.places_nbytes(chosen, elements) <= places_bound(elements, len(chosen))
    expected = 0
    for first in range(0, elements, BLOCK):
        here = np.count_nonzero((chosen >= first) & (chosen < first + BLOCK))
        expected += 2 + min(2 * here, -(-min(BLOCK, elements - first) // 8))
    assert nbytes == expected
    found, used = _kernels.places_read(out[:nbytes], elements, len(chosen))
    assert used == nbytes
    np.testing.assert_array_equal(found, chosen)
    for count in {len(chosen) - 1, len(chosen) + 1} & set(range(elements + 2)):
        with pytest.raises(WireError):
            _kernels.places_read(out[:nbytes], elements, count)


BAD = [[], [1], [1, 0], [1, 0, 9], [2, 0, 3, 0, 3, 0], [2, 0, 4, 0, 3, 0], [1, 0, 10, 0]]
BAD += [[255, 255, 1], [255, 255, 0, 4]]


@pytest.mark.parametrize("data", BAD)
@pytest.mark.parametrize("count", [0, 1, 2, 11])
def test_places_that_are_none_are_refused(data, count):
    with pytest.raises(WireError):
        _kernels.places_read(np.array(data, np.uint8), 10, count)


def test_kernels_refuse_places_beyond_the_end():
    index, values, y = np.array([1, 10], np.uint32), np.ones(8, np.uint8), np.zeros(10, np.float32)
    out = np.zeros(99, np.uint8)
    for call in (
        lambda: _kernels.places_nbytes(index, 10),
        lambda: _kernels.places_write(index, 10, out),
        lambda: _kernels.places_write(index[:1], 10, out[:3]),
        lambda: _kernels.add_at(y, index, values),
        lambda: _kernels.put_at(y, index, values),
        lambda: _kernels.add_at(y, index[:1], values),
    ):
        with pytest.raises(ValueError, match="got"):
            call()


@pytest.mark.parametrize("count", [0, 1, 23, 24, 25, 1000])
def test_values_are_added_or_put_at_places(count):
    random = np.random.default_rng(count)
    index = np.sort(random.permutation(5000)[:count]).astype(np.uint32)
    value, y = random.standard_normal(count).astype(np.float32), random.standard_normal(5000).astype(np.float32)
    added, put = y.copy(), y.copy()
    added[index] += value
    put[index] = value
    mine, other = y.copy(), y.copy()
    _kernels.add_at(mine, index, value.view(np.uint8))
    _kernels.put_at(other, index, value.view(np.uint8))
    np.testing.assert_array_equal(mine, added)
    np.testing.assert_array_equal(other, put)


@pytest.mark.parametrize(("at", "value"), [*itertools.product(range(16), (0, 1, 255))])
def test_a_changed_header_is_refused_or_read_within_the_vector(at, value):
    codec = bound("topk(k=3)", 20)
    found = Region(0, 20, Grid(1), 20)
    wire = encode(codec, np.arange(20, dtype=np.float32), None, found)[0].copy()
    wire[at] = value
    with contextlib.suppress(WireError):
        assert np.isfinite(decode(codec, wire, found)).all()
