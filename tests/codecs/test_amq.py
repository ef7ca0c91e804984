"""Particulars of amq: those of test_alq.py, where all codecs that learn their levels are tested."""

from levelled import spread as spread
from levelled import variance as variance

VARIANTS = ["amq(bits=6, zero_level=False, norm=l2, bucket=100)"]
WHOLE = []
