"""Particulars of thc: its scale, its steps, the rotation that all ranks share, exact sums, what is refused."""

import math

import numpy as np
import pytest
from contract import bernstein, decode, encode, region, sampled, vector
from scipy import integrate
from scipy.stats import norm
from simd import LEVELS, simd

from gqallreduce import Scheme, WireError, _kernels
from gqallreduce.coding.layout import Form, Grid, Region
from gqallreduce.registry import CODECS
from gqallreduce.runtime.local import LocalAllreduce

VARIANTS = ["thc(bits=3, bucket=33)", "thc(bits=8, clip=0, rotate=False)", "thc(bits=2, clip=1.5, bucket=100)"]
WHOLE = VARIANTS[:2]


def spread(codec, v, found) -> np.ndarray:
    """A step of a message without clipping."""
    return np.full(v.size, np.abs(v.astype(np.float64)).max(initial=0) / codec.steps)


def variance(codec, v, found) -> np.ndarray:
    """u^2 f (1 - f), as the docstring says."""
    step = spread(codec, v, found)
    place = np.abs(v) / np.where(step > 0, step, 1)
    share = place - np.floor(place)
    return step**2 * share * (1 - share)


def thc(**options):
    return CODECS["thc"](**options).bind(Form((1000,), "C", "float32"))


def unit_in(wire) -> np.float32:
    return wire[:4].view(np.float32)[0]


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_clip_has_the_least_error_for_normal_values(bits):
    """And that error is what the docstring says."""
    stated = {2: 0.266, 3: 0.0757, 4: 0.0222, 5: 0.00657, 6: 0.00194, 7: 0.00057, 8: 0.00016}
    steps = 2 ** (bits - 1) - 1

    def error(clip):
        unit = clip / steps
        share = [
            integrate.quad(lambda v, a=k * unit: (v - a) * (a + unit - v) * norm.pdf(v), k * unit, (k + 1) * unit)[0]
            for k in range(steps)
        ]
        return 2 * (sum(share) + integrate.quad(lambda v: (v - clip) ** 2 * norm.pdf(v), clip, math.inf)[0])

    best = thc().BEST[bits]
    assert error(best) == pytest.approx(stated[bits], rel=0.03)
    assert error(best) < min(error(best - 0.05), error(best + 0.05))


def test_the_scale_is_that_of_the_largest_bucket_and_short_buckets_do_not_raise_it():
    codec, n = thc(bits=4, bucket=100, clip=2.5), 1003
    found = region(codec, (Grid(33), 0, n, n))
    v = vector(codec, 4, n)
    v[300:400] *= 3
    v[1000:] = 1
    deviation = math.sqrt(np.mean(v[300:400].astype(np.float64) ** 2))
    assert unit_in(encode(codec, v, None, found)[0]) == pytest.approx(2.5 * deviation / 7, rel=1e-6)
    v[1000:] = 8  # the norm of these three is the most that a rotated one can be
    assert unit_in(encode(codec, v, None, found)[0]) == pytest.approx(8 * math.sqrt(3) / 7, rel=1e-6)


def test_without_a_rotation_the_scale_is_the_largest_value_or_that_of_the_clip():
    v = vector(thc(), 5, 1000)
    found = Region(0, 1000, Grid(1), 1000)
    unit = unit_in(encode(thc(rotate=False, clip=0), v, None, found)[0])
    assert np.float64(unit) * 7 >= np.abs(v).max() > np.float64(np.nextafter(unit, np.float32(0))) * 7
    deviation = math.sqrt(np.mean(v.astype(np.float64) ** 2))
    unit = unit_in(encode(thc(rotate=False, clip=1.5), v, None, found)[0])
    assert unit == pytest.approx(1.5 * deviation / 7, rel=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_what_is_decoded_rotated_again_is_of_whole_steps(bits):
    codec, n = thc(bits=bits, bucket=256), 2000
    found = region(codec, (Grid(33), 0, n, n))
    for kind in ("normal", "wide", "one hot", "constant"):
        wire, _ = encode(codec, vector(codec, 6, n, kind), None, found)
        unit, sent = unit_in(wire), decode(codec, wire, found)
        _kernels.rotate(sent, sent, 0, 256, int(unit.view(np.uint32)))
        multiples = sent / unit
        assert np.abs(multiples - np.round(multiples)).max() < 1e-3
        assert np.abs(np.round(multiples)).max() <= codec.steps


def test_with_clipping_the_mean_is_the_clipped_value():
    codec, failure, trials = thc(rotate=False, clip=1.5), 1e-9, 600
    found = region(codec, (Grid(33), 3, 200, 300))
    v = vector(codec, 5, 200)
    unit = float(unit_in(encode(codec, v, None, found)[0]))
    inside = np.clip(v, -7 * unit, 7 * unit)
    assert (np.abs(v) > 7 * unit).any()
    wrong = sampled(codec, v, found, trials).mean(0) - inside
    share = np.abs(inside) / unit % 1
    allowed = bernstein(unit**2 * share * (1 - share), unit, trials, failure / v.size)
    assert (np.abs(wrong) <= allowed + unit * 2.0**-15).all()


@pytest.mark.parametrize("kind", ["normal", "wide", "one hot", "constant"])
@pytest.mark.parametrize("bits", [2, 4])
def test_the_error_of_rotated_values_is_that_of_normal_ones(kind, bits):
    """Whatever they were: at most 1.3 times that of the docstring, over seeds."""
    codec, n = thc(bits=bits), 4096
    found = region(codec, (Grid(33), 0, n, n))
    error = total = 0.0
    for seed in range(20):
        v = vector(codec, seed, n, kind)
        _, lost = encode(codec, v, None, found, _kernels.Stream(seed, 1, 2, 3))
        error, total = error + np.sum(lost.astype(np.float64) ** 2), total + np.sum(v.astype(np.float64) ** 2)
    assert error / total < 1.3 * {2: 0.266, 4: 0.0222}[bits]


@pytest.mark.parametrize("size", [1, 15, 16, 17, 511, 512, 513, 3000])
def test_multiples_are_those_of_the_definition(size):
    """On all instruction sets, in place and not, beside the elements before."""
    v = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    v[size // 2] = -0.0
    for unit, steps, start in ((0.1, 7, 0), (0.01, 127, 5), (1e-40, 3, 100), (0.0, 7, 3), (3.0, 1, 2)):
        unit, stream = np.float32(unit), _kernels.Stream(7, 1, 2, 3)
        random = np.empty(size, np.uint16)
        _kernels.random16(stream, start, random)
        place = np.minimum(np.abs(v.astype(np.float64)) / unit if unit else np.zeros(size), steps)
        whole = np.floor(place)
        near = np.abs(random + 0.5 - (place - whole) * 65536) < 0.5  # float32 may have rounded over the draw
        expected = np.copysign(whole + (random + 0.5 < (place - whole) * 65536), v)
        regions = Region(start, size, Grid(1), start + size).table
        for level in LEVELS:
            with simd(level):
                m = np.empty(size, np.float32)
                assert _kernels.multiples_quantize(v, None, None, m, float(unit), steps, False, regions, stream) == 0
                np.testing.assert_array_equal(m[~near], expected[~near])
                assert not np.signbit(m[m == 0]).any()
                here = v.copy()
                _kernels.multiples_quantize(here, None, None, here, float(unit), steps, False, regions, stream)
                np.testing.assert_array_equal(here, m)


def test_clipped_values_are_counted():
    v = np.arange(-50, 51, dtype=np.float32)
    regions, stream = Region(0, 101, Grid(1), 101).table, _kernels.Stream(1, 2, 3, 4)
    for level in LEVELS:
        with simd(level):
            before = stream.clipped
            _kernels.multiples_quantize(v, None, None, v.copy(), 10.0, 3, False, regions, stream)
            assert stream.clipped - before == 40


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("bits", [2, 8])
def test_a_sum_is_the_sum_of_what_each_rank_sent(ranks, bits):
    """Nothing is rounded on the way: result + residuals is the sum of the gradients, and the residuals are the only
    error."""
    random = np.random.default_rng(ranks)
    gradients = random.standard_normal((ranks, 5000)).astype(np.float32)
    for schedule in ("direct", "ring", "recursive_doubling", "allgather", "halving_doubling"):
        local = LocalAllreduce(f"{schedule}/thc(bits={bits}, rotate=False, clip=0)/ef", ranks)
        (result, *_) = local([each.copy() for each in gradients], key="w")
        sent = sum((g.astype(np.float64) - m.residual("w")) for g, m in zip(gradients, local.memory, strict=True))
        steps = 2 ** (bits - 1) - 1
        clip = 1.02 if bits == 2 else steps  # with feedback, of the root mean square
        scales = [min(np.abs(each).max(), np.float32(clip * np.linalg.norm(each) / 5000**0.5)) for each in gradients]
        unit = np.float32(max(scales) / np.float64(steps))
        whole = sent / unit
        np.testing.assert_allclose(result / unit, np.round(whole), atol=1e-3)
        np.testing.assert_allclose(whole, np.round(whole), atol=1e-2)


def test_values_near_the_end_of_float32_are_cut_off_and_kept():
    x = np.array([1e38, -1e38, 1e30, 0], np.float32)
    local = LocalAllreduce("direct/thc(bucket=4)/ef", 2)
    (result, _) = local([x.copy(), np.zeros(4, np.float32)], key="w")
    kept = sum(memory.residual("w").astype(np.float64) for memory in local.memory)
    assert np.isfinite(result).all()
    np.testing.assert_allclose(kept + result, x, rtol=1e-6, atol=1e32)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("thc(bits=1)", "bits=1"),
        ("thc(bits=9)", "bits=9"),
        ("thc(clip=-1)", "clip=-1"),
        ("thc(clip=True)", "clip=True"),
        ("thc(clip=worst)", "clip='worst'"),
        ("thc(clip=0)", "rotate=False"),
        ("thc(rotate=1)", "rotate"),
        ("thc(bucket=0)", "bucket=0"),
        ("thc(bucket=2000000)", "bucket=2000000"),
    ],
)
def test_options_out_of_range_are_refused_where_they_are_written(text, said):
    with pytest.raises(ValueError, match="thc") as error:
        Scheme.parse(text)
    assert said in str(error.value)


def test_promises_are_those_of_the_options():
    assert thc().linear
    assert thc(rotate=False, clip=0).unbiased
    assert not thc().unbiased
    assert not thc(rotate=False, clip=9).unbiased


def test_a_message_whose_integers_are_too_large_for_their_unit_is_refused():
    scheme, n = Scheme.parse("thc(bits=8)"), 300
    data = bytearray(scheme.encode(np.random.default_rng(1).standard_normal(n)))
    data[32:36] = np.float32(3e38).tobytes()
    with pytest.raises(WireError, match="unit"):
        scheme.decode(bytes(data), n)


def test_these_are_the_bytes_of_values_that_are_exact():
    codec = thc(bits=3, clip=0, rotate=False)
    v = np.array([3, 0, -1, 2, 1, -3], np.float32)  # codes of three bits: 6 3 2 5 4 0
    wire, _ = encode(codec, v, None, Region(0, 6, Grid(1), 6), _kernels.Stream(0, 0, 0, 0))
    codes = sum(code << 3 * at for at, code in enumerate([6, 3, 2, 5, 4, 0]))
    assert wire[:4].tobytes() == np.float32(1).tobytes()
    assert wire[7:].tobytes() == codes.to_bytes(3, "little")


@pytest.mark.parametrize("n", [255, 511, 1000, 1023, 1024, 4095])
def test_a_bucket_of_any_length_is_rotated_well(n):
    """Also one whose energy lies in one half: both halves get their share of it."""
    random = np.random.default_rng(n)
    ratios = []
    for seed in range(40):
        v = random.standard_normal(n).astype(np.float32)
        v[n // 2 :] = 0
        turned = np.empty_like(v)
        _kernels.rotate(v, turned, 0, n, seed)
        share = np.sum(turned[: n // 2].astype(np.float64) ** 2) / np.sum(v.astype(np.float64) ** 2)
        ratios.append(share / (n // 2 / n))
        back = np.empty_like(v)
        _kernels.rotate(turned, back, 0, n, seed, 1, True)
        np.testing.assert_allclose(back, v, atol=1e-5)
    assert 0.9 < np.mean(ratios) < 1.1
