"""The host's and the device's operations are the same ones, called alike."""

import inspect

import pytest

from gqallreduce.backends.cuda.arithmetic import Arithmetic
from gqallreduce.coding import arithmetic

HOST_ONLY = {"scale_of"}  # of numbers that every processor gives to the host


def operations():
    own = inspect.getmembers(arithmetic, inspect.isfunction)
    return [name for name, each in own if not name.startswith("_") and name not in HOST_ONLY]


@pytest.mark.parametrize("name", operations())
def test_an_operation_is_called_alike_on_host_and_device(name):
    here, there = getattr(arithmetic, name), getattr(Arithmetic, name)
    ours = list(inspect.signature(here).parameters.values())
    theirs = list(inspect.signature(there).parameters.values())[1:]
    assert [each.name.rstrip("_") for each in theirs] == [each.name for each in ours]
    assert [each.default for each in theirs] == [each.default for each in ours]
