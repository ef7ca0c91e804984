"""Particulars of terngrad: its scale, its probabilities, integer sums that equal those of floats, what is refused."""

import numpy as np
import pytest
from contract import bernstein, decode, encode, region, sampled, vector
from plain import sum_rule

from gqallreduce import Scheme, _kernels
from gqallreduce.coding import frame
from gqallreduce.coding.layout import BLOCK, Grid, Region, Span
from gqallreduce.coding.preparing import Parts
from gqallreduce.registry import CODECS

VARIANTS = ["terngrad(clip=0)", "terngrad(clip=1.5, shared=False)", "terngrad(clip=None, shared=False)"]
both = pytest.mark.parametrize("shared", [True, False])


def spread(codec, v, found) -> np.ndarray:
    """The scale of a message without clipping."""
    return np.full(v.size, np.abs(v.astype(np.float64)).max(initial=0))


def variance(codec, v, found) -> np.ndarray:
    """|v| (s - |v|), as the docstring says."""
    return np.abs(v) * (spread(codec, v, found) - np.abs(v))


def scale(v, clip) -> np.float32:
    """min(max |v|, clip * root mean square), in one block of the sum rule."""
    largest = np.abs(v).max(initial=0)
    if not clip or not v.size:
        return largest
    return min(largest, np.float32(clip * np.sqrt((v.astype(np.float64) ** 2).sum() / v.size)))


def test_the_deviation_is_that_of_all_blocks_of_a_vector():
    x = np.concatenate([np.full(BLOCK, 3, np.float32), np.full(BLOCK, -1, np.float32), np.full(7, 2, np.float32)])
    message = Scheme.parse("terngrad(clip=1, shared=True)").encode(x)
    expected = np.float32(np.sqrt((9 * BLOCK + BLOCK + 7 * 4) / x.size))
    assert np.frombuffer(message, np.float32, 1, frame.SIZE)[0] == expected


@both
def test_every_outcome_is_the_scale_its_negative_or_zero(shared):
    codec = CODECS["terngrad"](clip=2.5, shared=shared)
    for size in (1, 100, 4096):
        found = region(codec, (Grid(33), 7, size, 9000))
        for kind in ("normal", "ties", "denormal", "huge", "one hot", "constant"):
            v = vector(codec, 4, size, kind)
            got = decode(codec, encode(codec, v, None, found)[0], found)
            s = scale(v, 2.5)
            assert set(np.unique(np.abs(got))) <= {np.float32(0), s}, kind
            assert (got * np.sign(v) >= 0).all()
            assert (got[np.abs(v) >= s] != 0).all() or not s


@both
def test_values_of_one_magnitude_are_exact_and_so_are_zeros(shared):
    for clip in (0, 1, 2.5):
        codec = CODECS["terngrad"](clip=clip, shared=shared)
        for magnitude in (0.7, 1e-42, 3e38, 0.0):
            v = np.where(np.arange(300) % 3, magnitude, -magnitude).astype(np.float32)
            found = region(codec, (Grid(33), 0, 300, 300))
            got = decode(codec, encode(codec, v, None, found)[0], found)
            np.testing.assert_allclose(got, v, rtol=1e-6)
            if not clip:
                np.testing.assert_array_equal(got, v)


@both
def test_without_clipping_the_mean_is_the_value_and_with_it_the_clipped_value(shared):
    failure, trials = 1e-9, 600
    for clip in (0, 1.5):
        codec = CODECS["terngrad"](clip=clip, shared=shared)
        found = region(codec, (Grid(33), 3, 200, 300))
        v = vector(codec, 5, 200)
        s = float(scale(v, clip))
        inside = np.clip(v, -s, s)
        wrong = sampled(codec, v, found, trials).mean(0) - inside
        stated = np.abs(inside) * (s - np.abs(inside))
        assert (np.abs(wrong) <= bernstein(stated, s, trials, failure / v.size) + s * 2.0**-16).all()
        assert (np.abs(v) > s).any() == bool(clip)
        assert codec.unbiased == (not clip)


def test_the_scale_of_a_long_vector_follows_the_sum_rule():
    """Blocks of 4096, added in order, the same for all instruction sets (which the contract compares)."""
    v = vector(CODECS["terngrad"](), 8, 20001, "wide")
    squares = sum_rule(v.astype(np.float64) ** 2)
    expected = np.float32(2.5 * np.sqrt(squares / v.size))
    data = Scheme.parse("terngrad").encode(v)
    assert data[32:36] == expected.tobytes()


def test_promises_are_those_of_the_options():
    promised = {
        "terngrad": (False, True),
        "terngrad(clip=0)": (True, True),
        "terngrad(clip=None, shared=False)": (True, False),
        "terngrad(shared=False)": (False, False),
    }
    for text, (unbiased, linear) in promised.items():
        codec = Scheme.parse(text).codec
        assert (codec.unbiased, codec.linear) == (unbiased, linear), text
    assert not CODECS["terngrad"].promises()["unbiased"]
    assert CODECS["terngrad"].promises()["linear"]


@pytest.mark.parametrize(
    "options", ["clip=-1", "clip=True", "clip='x'", "clip=1e400", "shared=1", "shared=None", "bits=2", "clip=[2]"]
)
def test_options_out_of_range_are_refused_where_they_are_written(options):
    with pytest.raises(ValueError, match="terngrad"):
        Scheme.parse(f"terngrad({options})")


def test_these_are_the_bytes_of_values_that_are_exact():
    codec = CODECS["terngrad"](clip=0)
    v = np.array([3, 0, -3, 3, 0, 0, -3], np.float32)  # codes of two bits: 2 1 0 2 1 1 0
    wire, _ = encode(codec, v, None, Region(0, 7, Grid(1), 7), _kernels.Stream(0, 0, 0, 0))
    assert wire.tobytes() == np.float32(3).tobytes() + b"\x03\0\x02" + bytes([0b10000110, 0b000101])


def test_scales_of_several_tensors_are_those_of_each():
    """Also beside one with a value that is not finite, whose number is 0."""
    codec, sizes = Scheme.parse("direct/terngrad(clip=2.5, shared=True)").codec, [50, 1, 300, 7, 90]
    x = np.random.default_rng(5).standard_normal(sum(sizes)).astype(np.float32)
    x[60] = np.inf
    ends = np.cumsum(sizes)
    regions = [Region(0, size, Grid(1), size, number) for number, size in enumerate(sizes)]

    def asked(regions, x):
        """What this rank asks for, of parts that are loaded from x."""
        whole = regions[0] if isinstance(regions[0], Span) else None
        parts = Parts(regions, lambda at, x=x: (x[: at.size], None, None), whole=whole)
        return next(codec.prepare(parts)).values.tolist()

    each = [asked([region], x[end - region.size :])[0] for region, end in zip(regions, ends, strict=True)]
    assert each[2] == 0.0
    assert asked([Span(regions)], x) == each
    same = [*regions[:3], *(region._replace(segment=3) for region in regions[3:])]
    (together,) = asked([Span(same[3:])], x[351:])
    assert asked([Span(same)], x) == [*each[:3], together]
    steps = codec.prepare(Parts([Span(same)], lambda at: (x, None, None), whole=Span(same)))
    next(steps)
    with pytest.raises(StopIteration) as done:
        steps.send(np.array([1.0, 2.0, 3.0, 4.0]))
    assert done.value.value.codec.unit.tolist() == [1, 2, 3, 4]
