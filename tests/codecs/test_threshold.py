"""Particulars of threshold: what is sent, what stays in the residual, sums that are exact multiples, and their cost."""

import numpy as np
import pytest
from contract import decode, encode, region, same_bits, vector

from gqallreduce import Scheme
from gqallreduce.coding import frame
from gqallreduce.coding.layout import Grid

VARIANTS = ["threshold(tau=0.02)", "threshold(tau=3)"]


def threshold(tau):
    return Scheme.parse(f"threshold(tau={tau})").codec


@pytest.mark.parametrize("tau", [1e-38, 0.02, 1, 1.5, 3e38])
def test_values_from_tau_on_are_sent_as_tau_and_the_others_not_at_all(tau):
    found, tau = region(threshold(tau), (Grid(33), 5, 999, 2000)), np.float32(tau)
    for kind in ("normal", "wide", "huge", "ties", "zero"):
        v = vector(threshold(tau), 3, found.size, kind)
        v[:4] = tau, -tau, np.nextafter(tau, np.float32(0)), -np.nextafter(tau, np.float32(0))
        wire, new_residual = encode(threshold(tau), v, None, found)
        expected = np.where(np.abs(v) >= tau, np.copysign(tau, v), np.float32(0))
        assert same_bits(decode(threshold(tau), wire, found), expected), kind
        np.testing.assert_array_equal(new_residual, v - expected)


@pytest.mark.parametrize("share", [0.0, 1e-4, 1e-3, 0.01, 0.1, 0.3, 1.0])
def test_a_message_is_no_longer_than_two_bits_a_value_and_short_when_little_is_sent(share):
    size, rng = 1 << 18, np.random.default_rng(1)
    v = np.where(rng.random(size) < share, rng.choice([-2.0, 2.0], size), 0.5).astype(np.float32)
    sent = int((np.abs(v) >= 1).sum())
    nbytes = len(Scheme.parse("threshold(tau=1)").encode(v)) - frame.SIZE
    tiles = size // 4096
    assert nbytes <= 4 + tiles * 3 + size // 4
    assert nbytes <= 4 + tiles * 7 + sent * 11 / 8 + size / 255 + tiles
    assert nbytes >= 4 + tiles * 3 + (sent > 0) * min(sent * 9 // 8, size // 4)


@pytest.mark.parametrize(
    "tau", ["0", "-1.0", "-0.0", "1e39", "1e-50", "True", "None", "'1'", "inf", "[1]", "1e400", "-1e400"]
)
def test_a_threshold_that_is_none_is_refused_where_it_is_written(tau):
    with pytest.raises(ValueError, match="tau"):
        Scheme.parse(f"threshold(tau={tau})")


def test_these_are_the_bytes_of_a_dense_and_of_a_sparse_tile():
    codec = threshold(2)
    v = np.array([2, -3, 0, 1.9, -1.9, 7], np.float32)  # codes of two bits: 2 0 1 1 1 2, zero is 1
    wire, _ = encode(codec, v, None, region(codec, (Grid(33), 0, 6, 6)))
    assert wire.tobytes() == np.float32(2).tobytes() + b"\x03\0\x02" + bytes([0b01010010, 0b1001])
    v = np.zeros(1000, np.float32)
    v[[3, 4, 600]] = 5, -5, 5  # gaps 3, 0 and 595 = 255 + 255 + 85; signs 1 0 1
    wire, _ = encode(codec, v, None, region(codec, (Grid(33), 0, 1000, 1000)))
    assert wire.tobytes() == np.float32(2).tobytes() + b"\x0b\0\x81\x03\0\x05\0" + bytes([3, 0, 255, 255, 85, 0b101])
    wire, _ = encode(codec, 0 * v, None, region(codec, (Grid(33), 0, 1000, 1000)))
    assert wire.tobytes() == np.float32(2).tobytes() + b"\x01\0\x01"
