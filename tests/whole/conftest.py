"""Whole calls are tried in both runtimes: instructions carried out in C++, and by Python, which is the oracle."""

import pytest


@pytest.fixture(params=["native", "python"], autouse=True)
def runtime(request, monkeypatch):
    """What an object that is made in a test carries its instructions out by."""
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", request.param)
    return request.param
