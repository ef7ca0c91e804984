"""Particulars of bfloat16: where its range ends and how fine it is. What it shares with its kin is in test_plain.py."""

import numpy as np
import pytest
from contract import sent

from gqallreduce import NonFiniteError, Scheme

CODEC = Scheme.parse("bfloat16").codec


def test_every_bound_of_two_numbers_goes_to_the_even_one():
    numbers = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32)
    ties = numbers[:-1] / 2 + numbers[1:] / 2
    codes = sent(CODEC, ties).view(np.uint32) >> 16
    np.testing.assert_array_equal(codes, np.arange(0x7F7F) + 1 & 0xFFFE)
    np.testing.assert_array_equal(sent(CODEC, -ties), -sent(CODEC, ties))


def test_the_error_is_the_one_stated():
    v = np.random.default_rng(1).standard_normal(9999).astype(np.float32) * np.exp2(np.linspace(-140, 120, 9999))
    v = v.astype(np.float32)
    assert (np.abs(v - sent(CODEC, v)) <= np.where(np.abs(v) < 2.0**-126, 2.0**-134, 2.0**-8 * np.abs(v))).all()


def test_overflow_is_not_finite_and_never_saturates():
    most = float.fromhex("0x1.fep127")
    beyond = float.fromhex("0x1.ffp127")  # halfway to where the next number would be
    assert sent(CODEC, [np.nextafter(np.float32(beyond), np.float32(0))]) == most
    with pytest.raises(NonFiniteError) as caught:
        Scheme.parse("bfloat16").encode([1.0, -beyond, 3.4e38])
    assert caught.value.index == 1
