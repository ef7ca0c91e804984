"""Which codecs the runtime in C++ carries out on host arrays: those that docs/design.md says."""

import re
from pathlib import Path

import numpy as np
import pytest
from reductions import DTYPES, arrays
from schemes import TEXTS, variants

import gqallreduce as gq
from gqallreduce.coding.levels import LevelCodec
from gqallreduce.registry import CODECS
from gqallreduce.runtime import native
from gqallreduce.runtime.local import LocalAllreduce

PAGE = Path(__file__).parents[2] / "docs" / "design.md"
RANKS = 2
# What Python carries out: of `isgq` products, whose factors go to all ranks; of `randk` what has places of its own.
PRODUCTS_IN_PYTHON, ARRAYS_IN_PYTHON = {"isgq"}, {"randk": "shared=False"}
every_codec = pytest.mark.parametrize("name", sorted(CODECS))
in_cpp = pytest.mark.parametrize("runtime", ["native"], indirect=True)


@pytest.fixture
def operations(monkeypatch):
    """Of each Operation that a test makes: does the runtime in C++ carry it out?"""
    found, usual = [], native.native_operation

    def noted(operation):
        made = usual(operation)
        assert made is None or operation.plan.native is not None
        found.append(made is not None)
        return made

    monkeypatch.setattr(native, "native_operation", noted)
    return found


@in_cpp
@every_codec
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F with gaps"])
def test_every_codec_sums_arrays_in_cpp(runtime, operations, name, dtype, order):
    LocalAllreduce(f"direct/{name}/ef", RANKS)(arrays(1, RANKS, (64, 48), dtype, order), key="w")
    assert set(operations) == {True}


@in_cpp
@variants("text", TEXTS)
def test_with_other_options_all_but_one_sum_arrays_in_cpp(runtime, operations, text):
    LocalAllreduce(f"ring/{text}", RANKS)(arrays(1, RANKS, (64, 48)), key="w")
    in_python = any(text.startswith(name) and option in text for name, option in ARRAYS_IN_PYTHON.items())
    assert set(operations) == {not in_python}


@in_cpp
@every_codec
def test_every_codec_but_one_sums_products_in_cpp(runtime, operations, name):
    rng = np.random.default_rng(2)
    given = [gq.Outer(*rng.standard_normal((2, 1, 64)).astype(np.float32)) for _ in range(RANKS)]
    out = [np.empty((64, 64), np.float32) for _ in range(RANKS)]
    LocalAllreduce(f"direct/{name}/ef", RANKS)(given, key="w", out=out)
    assert set(operations) == (set() if name in PRODUCTS_IN_PYTHON else {True})


def test_the_page_on_design_names_the_same_codecs():
    section = PAGE.read_text().split("\n## Two runtimes\n")[1].split("\n## ")[0]
    python, cpp = (re.split("\n- |\n\n", section.split(f"- **In {name}**")[1])[0] for name in ("Python", "C++"))
    sentence = next(each for each in python.split(". ") if re.search(r"carried\s+out\s+here", each))
    found = re.findall(r"`(\w+)(?:\((.*?)\))?`", sentence)
    assert dict(found) == dict.fromkeys(PRODUCTS_IN_PYTHON, "") | ARRAYS_IN_PYTHON
    named = set(re.findall(r"`(\w+)`", cpp)) & set(CODECS)
    assert "level codecs" in cpp
    levels = {name for name, codec in CODECS.items() if issubclass(codec, LevelCodec)}
    assert named | levels == set(CODECS) - PRODUCTS_IN_PYTHON
