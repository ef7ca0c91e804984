"""Error against bits: closed forms, published figures, recorded gradients, and the table of the docs."""

import argparse
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import gqallreduce as gq
from gqallreduce.cli import quantization_error as errors
from gqallreduce.cli.report import read

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "quantization_error.jsonl"


def options(*words):
    parser = argparse.ArgumentParser()
    errors.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def measured(text, data="Gaussian", bucket=8192):
    scheme = gq.Scheme.parse(text)
    return next(iter(errors.measure([(text, scheme)], errors.values(data, bucket), bucket, once=True)))


def gradients(folder):
    """A folder as bench/train_mlp.py --dump-gradients writes it."""
    rng = np.random.default_rng(1)
    for name, shape in (("fc1.weight", (2, 60, 50)), ("fc1.bias", (2, 60)), ("fc2.weight", (2, 10, 60))):
        np.savez(folder / f"{name}.step0005.npz", gradients=rng.standard_normal(shape).astype(np.float32))
    (folder / "metadata.json").write_text(json.dumps({"data": "made up", "steps": [5]}))
    return folder


def test_of_gaussian_values_onebit_loses_one_minus_two_over_pi():
    row = measured("onebit")
    assert row["error"] == pytest.approx(1 - 2 / math.pi, rel=0.02)
    assert row["bits"] == pytest.approx(1 + 64 / 4096)
    assert row["bucket"] is None


@pytest.mark.parametrize(("text", "error"), [
    ("qsgd(bits=3, norm=l2)", 23.0),
    ("nuqsgd(bits=3)", 17.0),
    ("nuqsgd(bits=3, zero_level=False)", 127.0),
    ("nuqsgd(bits=4)", 0.335),
    ("qsgd(bits=3)", 0.279),
    ("qsgd(bits=3, zero_level=False)", 0.205),
    ("qsgd(bits=2)", 2.09),
    ("natural_dithering(bits=3)", 0.182),
    ("natural_dithering(bits=4)", 0.082),
])  # fmt: skip
def test_of_gaussian_buckets_of_8192_codecs_lose_what_their_formulas_say(text, error):
    """Independent sums of norm^2 (r - a)(c - r) over 24 buckets; the norm of so few varies by some percent."""
    row = measured(text)
    assert row["error"] == pytest.approx(error, rel=0.08)
    assert row["bucket"] == 8192


def test_a_bucket_that_the_text_gives_is_measured_once():
    schemes = [(text, gq.Scheme.parse(text)) for text in ("qsgd(bits=4, bucket=64)", "mx(block=32)", "qsgd", "mx")]
    v = errors.values("Laplace", 128)
    assert [row["bucket"] for row in errors.measure(schemes, v, 128, once=False)] == [128, 128]
    assert [row["bucket"] for row in errors.measure(schemes, v, 128, once=True)] == [None, None, 128, 128]


@pytest.mark.parametrize("name", errors.SYNTHETIC)
def test_values_are_the_same_each_time_and_whole_buckets(name):
    first, again = errors.values(name, 2048), errors.values(name, 2048)
    assert first.tobytes() == again.tobytes()
    assert first.dtype == np.float32
    assert first.size % 2048 == 0
    assert first.size >= errors.LEAST


def test_mixed_scales_are_eight_in_a_bucket():
    parts = errors.values("mixed scales", 8192).reshape(-1, 8, 1024).std(axis=2)
    assert (parts.max(axis=1) > 2 * parts.min(axis=1)).all()


def test_the_command_measures_prints_and_draws(tmp_path, capsys):
    name = tmp_path / "out"
    words = ["--codecs", "qsgd(bits=4)", "onebit", "--buckets", 64, 512, "--gradients", gradients(tmp_path)]
    assert errors.run(options(*words, "--output", name)) == 0
    machine, rows = read(f"{name}.jsonl", "error")
    assert machine["gradients"]["data"] == "made up"
    names = [*errors.SYNTHETIC, "recorded"]
    assert {(row["data"], row["codec"], row["bucket"]) for row in rows} == {
        (data, codec, bucket)
        for data in names
        for codec, bucket in (("qsgd(bits=4)", 64), ("qsgd(bits=4)", 512), ("onebit", None))
    }
    printed = capsys.readouterr().out
    assert "buckets of 512" in printed
    for row in errors.lines(rows, 512):
        assert len(row) == 2 + len(names)
        assert row[0] in printed
    for ending in ("png", "svg"):
        assert (tmp_path / f"out.{ending}").stat().st_size > 1000


def test_recorded_gradients_are_the_matrices_of_rank_0_column_by_column(tmp_path):
    v, about = errors.read_gradients(gradients(tmp_path))
    first = np.load(tmp_path / "fc1.weight.step0005.npz")["gradients"][0]
    assert v.size == 60 * 50 + 10 * 60
    np.testing.assert_array_equal(v[:60], first[:, 0])
    assert about["steps"] == [5]


@pytest.mark.parametrize("words", [
    ["--codecs", "qsgd(bits=99)"], ["--codecs", "auto/qsgd"], ["--codecs", "qsgd/ef"], ["--codecs", "dense"],
    ["--gradients", "/nowhere"],
])  # fmt: skip
def test_wrong_arguments_are_named(words, tmp_path, capsys):
    assert errors.run(options(*words, "--output", tmp_path / "out")) == 2
    assert "quantization_error:" in capsys.readouterr().err


def test_the_table_of_the_docs_is_that_of_the_results():
    page = (ROOT / "docs" / "codecs.md").read_text()
    shown = re.search(r"^\| codec, buckets of 8192 .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    found = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in shown.splitlines()[2:] if line]
    rows = {line[0]: line for line in errors.lines(read(RESULTS, "error")[1], errors.SHOWN)}
    assert len(found) > 20
    assert found == [rows[line[0]] for line in found]
