"""Particulars of amq_n: those of test_alq.py, where all codecs that learn their levels are tested."""

from levelled import spread as spread
from levelled import variance as variance

WHOLE = "amq"
