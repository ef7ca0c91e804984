"""drive is eden with one bit: see test_eden.py."""

from test_eden import spread as spread
from test_eden import variance as variance

VARIANTS = ["drive(bucket=100)"]
WHOLE = "eden"
