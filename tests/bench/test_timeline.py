"""Traces, whole or cut off, become sums and a picture."""

import pytest

from gqallreduce.__main__ import main
from gqallreduce.cli import timeline
from gqallreduce.runtime.trace import SEND, WAIT, Trace


@pytest.fixture
def trace(tmp_path):
    made = Trace(f"{tmp_path}/calls.json", 3)
    made.add("encode", 1.0, 1.002, "'w'", 0, chunk=1)
    made.add(WAIT, 1.002, 1.006, "'w'", 0)
    made.add(SEND, 1.001, 1.004, "'w'", 1, to=2, bytes=100)
    return made


def test_what_lanes_did_is_added_up_and_drawn(trace, tmp_path, capsys):
    trace.close()
    assert main(["timeline", str(trace.path), "--output", f"{tmp_path}/drawn"]) == 0
    printed = capsys.readouterr().out
    assert trace.path.name == "calls.3.json"
    heads, _, row = printed.splitlines()[:3]
    assert heads.split()[:2] == ["trace", "encode"]
    assert [row.count(text) for text in ("2 ms", "4 ms", "3 ms")] == [1, 1, 1]
    assert all((tmp_path / f"drawn.{suffix}").stat().st_size > 0 for suffix in ("png", "svg"))


def test_a_trace_that_was_cut_off(trace):
    trace._file.flush()
    names = [span["name"] for span in timeline.spans(trace.path)]
    trace.close()
    assert names == [span["name"] for span in timeline.spans(trace.path)] == ["encode", "wait", "send"]


def test_the_last_milliseconds_only(trace, tmp_path, capsys):
    trace.close()
    assert main(["timeline", str(trace.path), "--last", "3.5", "--output", f"{tmp_path}/drawn"]) == 0
    assert "2 ms" not in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "no trace", "[\n]\n", "[{}]"])
def test_what_is_no_trace(content, tmp_path, capsys):
    (tmp_path / "wrong.json").write_text(content)
    assert main(["timeline", f"{tmp_path}/wrong.json"]) == 2
    assert capsys.readouterr().err.startswith("timeline: ")
