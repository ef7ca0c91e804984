"""The worked examples of docs/wire.md are what the package makes of their values."""

import re
from pathlib import Path

import numpy as np
import pytest

import gqallreduce as gq
from gqallreduce.registry import CODECS

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
FIELDS = ("scheme", "values", "step", "header", "payload", "decoded")


def examples():
    """Field -> text of every example; lines that begin with blanks belong to the field above."""
    found = []
    for block in re.findall(r"^```text\n(scheme .*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        joined = re.sub(r"\n +", " ", block)
        found.append(dict(line.split(maxsplit=1) for line in joined.splitlines()))
    return found


def given(example):
    """A matrix, of which `;` ends a row; two with an `x` between them are the factors of a gradient."""
    matrices = [np.array([row.split() for row in each.split(";")], np.float32) for each in example["values"].split("x")]
    return gq.Outer(*matrices) if len(matrices) > 1 else matrices[0]


every_example = pytest.mark.parametrize("example", examples(), ids=lambda example: example["scheme"])


def test_every_codec_has_an_example():
    assert {gq.Scheme.parse(example["scheme"]).codec.name for example in examples()} == set(CODECS)


@every_example
def test_an_example_says_everything(example):
    assert tuple(example) == FIELDS


@every_example
def test_encoding_the_values_gives_the_bytes(example):
    data = gq.Scheme.parse(example["scheme"]).encode(given(example), step=int(example["step"]))
    assert data[:32].hex(" ") == example["header"]
    assert data[32:].hex(" ") == example["payload"]


@every_example
def test_decoding_the_bytes_gives_the_numbers(example):
    data = bytes.fromhex(example["header"] + example["payload"])
    expected = np.array(example["decoded"].split(), np.float32)
    like = given(example)
    like = like if isinstance(like, gq.Outer) else expected.size if len(like) == 1 else like.shape
    assert gq.Scheme.parse(example["scheme"]).decode(data, like).tobytes() == expected.tobytes()
