"""Packages of the extras that commands need."""

import importlib.util

BENCH = "rich", "psutil", "matplotlib"


def lacking(names=BENCH, extra="bench"):
    """What is not installed, and how to install it, for an error; "" if all are there."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(absent)}: pip install 'gqallreduce[{extra}]'" if absent else ""
