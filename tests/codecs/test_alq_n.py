"""Particulars of alq_n: those of test_alq.py, where all codecs that learn their levels are tested."""

from levelled import spread as spread
from levelled import variance as variance

VARIANTS = ["alq_n(bits=2, bucket=100, share=group)"]
WHOLE = "alq"
