"""bench/codecs.py on the host: what it measures of codecs that encode vectors, and of those that sum shorter ones."""

from pathlib import Path

import numpy as np
import pytest

from gqallreduce import _kernels
from gqallreduce.backends.processor import Host
from gqallreduce.cli import codecs_on_host, plots

NBYTES = 1 << 16


@pytest.fixture(scope="module")
def rows():
    texts = ["topk(ratio=0.01)/ef", "randk(ratio=0.01, shared=False)/ef", "randk(ratio=0.01)/ef", "randk(ratio=0.01)"]
    level = _kernels.simd_level()
    return {row["codec"]: row for row in codecs_on_host.measure(texts, NBYTES, level, 1)}


def test_nothing_is_wrong_with_what_was_timed(rows):
    assert [row["wrong"] for row in rows.values()] == [""] * 4
    assert all(row["encode_seconds"][0] > 0 for row in rows.values())


def test_of_a_sum_of_chosen_values_a_call_is_timed_and_nothing_decoded(rows):
    assert {text: "decode_add_ratio" in row for text, row in rows.items()} == {
        "topk(ratio=0.01)/ef": True,
        "randk(ratio=0.01, shared=False)/ef": True,
        "randk(ratio=0.01)/ef": False,
        "randk(ratio=0.01)": False,
    }
    assert rows["randk(ratio=0.01)"]["compression"] == pytest.approx(4 * 16384 / (4 * 163))


def test_a_call_that_loses_a_value_is_found_out(monkeypatch):
    call = codecs_on_host.Call("randk(ratio=0.5)/ef", [np.ones(8, np.float32)], Host())
    call.encode()
    assert call.wrong() == ""
    monkeypatch.setattr(call, "_call", lambda number: None)  # neither sum nor residual is of this call
    assert "neither sent nor in the residual" in call.wrong()


def test_tables_and_plots_have_rows_without_decoding(rows, tmp_path, machine_description):
    rows = list(rows.values())
    assert list(codecs_on_host.codecs_table(rows).columns[5].cells)[2:] == ["-", "-"]
    for written in plots.draw_codecs(machine_description, rows, tmp_path / "plot"):
        assert Path(written).stat().st_size > 1000
