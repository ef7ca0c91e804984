"""Traces, whole or cut off, become sums and a picture."""

import time

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


def test_hosts_whose_clocks_count_from_other_moments_are_set_side_by_side(tmp_path, monkeypatch):
    """Each trace was begun when its host had been up for another time."""
    paths, up = [], {0: 1000.0, 1: 5000.0}
    monkeypatch.setattr(time, "time", lambda: 1.7e9)
    for rank, now in up.items():
        monkeypatch.setattr(time, "perf_counter", lambda now=now: now)
        made = Trace(f"{tmp_path}/calls.json", rank)
        made.add("encode", now + 1, now + 2, "'w'", 0)
        made.close()
        paths.append(made.path)
    one, other = (timeline.spans(path) for path in paths)
    assert one == other


def test_a_rank_that_did_nothing_in_the_last_milliseconds_is_told(trace, tmp_path, capsys):
    later = Trace(f"{tmp_path}/calls.json", 4)
    later.add("encode", 3.0, 3.006, "'w'", 0)
    for each in (trace, later):
        each.close()
    command = ["timeline", str(trace.path), str(later.path), "--last", "5", "--output", f"{tmp_path}/drawn"]
    assert main(command) == 0
    assert "calls.3.json ends 2 s before the last" in capsys.readouterr().err


def test_two_objects_do_not_write_one_file(trace, tmp_path):
    with pytest.raises(ValueError, match="another object writes it"):
        Trace(f"{tmp_path}/calls.json", 3)
    trace.close()
    Trace(f"{tmp_path}/calls.json", 3).close()


@pytest.mark.parametrize("wrong", [True, 3, b"calls.json"])
def test_what_is_no_name_of_a_file(wrong):
    with pytest.raises(TypeError, match=r"expected the name of a file, such as 'calls.json'"):
        Trace(wrong, 0)


@pytest.mark.parametrize("content", ["", "no trace", "[\n]\n", "[{}]"])
def test_what_is_no_trace(content, tmp_path, capsys):
    (tmp_path / "wrong.json").write_text(content)
    assert main(["timeline", f"{tmp_path}/wrong.json"]) == 2
    assert capsys.readouterr().err.startswith("timeline: ")
