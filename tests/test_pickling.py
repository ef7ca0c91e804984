"""Errors, schemes and the catalogue go from process to process: pickled or copied, they say the same."""

import copy
import inspect
import pickle
from dataclasses import fields

import numpy as np
import pytest

import gqallreduce as gq
from gqallreduce import errors
from gqallreduce.coding import arithmetic
from gqallreduce.coding.layout import Form
from gqallreduce.registry import CODECS

WAYS = {
    **{f"pickle {protocol}": protocol for protocol in range(pickle.HIGHEST_PROTOCOL + 1)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
ARGUMENTS = {"rank": 1, "key": "w", "index": 7, "field": "shape", "ranks": [2, 0], "detail": "text", "seconds": 2.5}
ARGUMENTS["told_by"] = 1
CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]


@pytest.fixture(params=WAYS)
def again(request):
    """Takes a thing and gives what comes back."""
    way = WAYS[request.param]
    return way if callable(way) else lambda thing: pickle.loads(pickle.dumps(thing, way))


def test_statistics_of_a_call_keep_their_numbers(again):
    with gq.Allreduce("onebit/ef") as allreduce:
        allreduce(np.arange(50, dtype=np.float32), key="w")
        last = allreduce.stats.last
        back = again(last)
        assert repr(back) == repr(last)
        assert back.residual_norm > 0


def example(cls):
    """An error of this class, from arguments that its constructor names."""
    if "__init__" not in vars(cls):
        return cls("text")
    names = list(inspect.signature(cls).parameters)
    return cls(*(ARGUMENTS[name] for name in names))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_keeps_its_text_and_its_attributes(cls, again):
    error = example(cls)
    error.note = "added later"
    back = again(error)
    assert type(back) is cls
    assert back is not error
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))


def test_every_error_that_the_package_exports_is_among_them():
    assert {name for name in gq.__all__ if name.endswith("Error")} == {cls.__name__ for cls in CLASSES}


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("suffix", ["", "/ef"])
def test_a_scheme_stays_equal(codec, suffix, again):
    scheme = gq.Scheme.parse(CODECS[codec].example.removesuffix("/ef") + suffix)
    message = scheme.encode([1.5, -2.0, 0.25])  # a codec may keep what it has computed for that
    back = again(scheme)
    assert back == scheme
    assert hash(back) == hash(scheme)
    assert (str(back), back.resolved()) == (str(scheme), scheme.resolved())
    assert back.encode([1.5, -2.0, 0.25]) == message


DIRECT = [name for name in sorted(CODECS) if not gq.Scheme.parse(CODECS[name].example).codec.indirect]


@pytest.mark.parametrize("name", DIRECT)
def test_a_codec_in_use_stays_equal(name, again):
    codec = gq.Scheme.parse(CODECS[name].example).codec.bind(Form((5,), "C", "float32"), 3, arithmetic)
    back = again(codec)
    assert back == codec
    assert hash(back) == hash(codec)
    assert back.arithmetic is arithmetic
    assert [getattr(back, each.name) for each in fields(codec)] == [getattr(codec, each.name) for each in fields(codec)]


@pytest.mark.parametrize("name", DIRECT)
def test_a_copy_works_on_the_same_processor_and_a_pickle_on_the_host(name):
    processor = object()
    codec = gq.Scheme.parse(CODECS[name].example).codec.bind(Form((5,), "C", "float32"), 3, processor)
    assert copy.copy(codec).arithmetic is processor
    assert pickle.loads(pickle.dumps(codec)).arithmetic is arithmetic


def test_the_catalogue_stays_equal(again):
    assert [again(entry) for entry in gq.schemes()] == gq.schemes()
