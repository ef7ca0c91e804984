"""Particulars of natural_dithering: those of test_nuqsgd.py, where both are tested."""

from levelled import spread as spread
from levelled import variance as variance

from gqallreduce import Scheme


def test_its_norm_is_the_largest_magnitude():
    assert Scheme.parse("natural_dithering").codec.norm == "max"
