"""Particulars of float16: where its range ends and how fine it is. What it shares with its kin is in test_plain.py."""

import numpy as np
import pytest
from contract import sent

from gqallreduce import NonFiniteError, Scheme

CODEC = Scheme.parse("float16").codec


def test_every_bound_of_two_numbers_goes_to_the_even_one():
    numbers = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (numbers[1:] + numbers[:-1]) / 2
    codes = sent(CODEC, ties).astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(codes, np.arange(0x7BFF) + 1 & 0xFFFE)
    np.testing.assert_array_equal(sent(CODEC, -ties), -sent(CODEC, ties))


def test_the_error_is_the_one_stated():
    v = np.random.default_rng(1).standard_normal(9999).astype(np.float32) * np.exp2(np.linspace(-30, 13, 9999))
    v = v.astype(np.float32)
    assert (np.abs(v - sent(CODEC, v)) <= np.where(np.abs(v) < 2.0**-14, 2.0**-25, 2.0**-11 * np.abs(v))).all()


def test_overflow_is_not_finite_and_never_saturates():
    assert sent(CODEC, [65519.0]) == 65504
    with pytest.raises(NonFiniteError) as caught:
        Scheme.parse("float16").encode([1.0, -65520.0, 1e30])
    assert caught.value.index == 1
