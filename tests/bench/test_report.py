"""Tables, JSON lines and plots, from recorded rows."""

import io
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from rich.console import Console

from gqallreduce.cli import plots, report, tables
from gqallreduce.cli.codecs_on_host import codecs_table


def rendered(table):
    console = Console(width=80, file=io.StringIO(), color_system=None)
    report.print_whole(console, table)
    return console.file.getvalue()


def test_a_table_of_results_has_its_numbers_to_the_right():
    lines = [["raw", "1.5"], ["qsgd(bits=4)", "12.25"]]
    text = rendered(tables.results("Found", ("scheme", "ms"), lines, left=("scheme",)))
    title, *_, first, second = (line.rstrip() for line in text.splitlines() if line.strip())
    assert title == "Found"
    assert [first.split(), second.split()] == lines
    assert len(first) == len(second)
    assert first.index("raw") == second.index("qsgd")


def test_a_table_of_sums_has_a_row_for_each_scheme_and_says_what_auto_chose(sum_rows):
    rows = [row for row in sum_rows if row["side"] == 512]
    text = rendered(report.sums_table(rows))
    for column in ("size", "scheme", "median ms", "min", "max", "speed-up", "sent/rank", "ratio", "error", "wait"):
        assert column in text
    for row in rows:
        assert row["scheme"] in text
    assert "auto/adaptive(pi=64)/ef -> direct " in text
    assert "58.00" in text
    assert "25.6 KiB" in text
    assert "…" not in text


def test_a_table_of_codecs_has_a_row_for_each_codec_and_level(codec_rows):
    text = rendered(codecs_table(codec_rows[:4]))
    for row in codec_rows[:4]:
        assert any(row["codec"] in line and row["simd"] in line for line in text.splitlines())


def test_what_is_written_as_json_lines_is_read_back(tmp_path, capsys, machine_description, sum_rows):
    path = tmp_path / "made" / "here" / "rows.jsonl"
    written = report.Report(path)
    written.write("machine", machine_description)
    for row in sum_rows:
        written.write("sum", row)
    assert report.read(path) == (machine_description, sum_rows)


def test_ranks_other_than_0_keep_quiet(capsys, sum_rows):
    silent = report.Silent()
    silent.say("text")
    silent.write("sum", {})
    silent.table(report.sums_table(sum_rows[:2]))
    with silent.progress(3) as progress:
        progress.show("text")
        progress.step()
    assert capsys.readouterr() == ("", "")


def test_progress_is_quiet_where_there_is_no_terminal(capsys):
    with report.Report().progress(3) as progress:
        progress.show("text")
        progress.step()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["sum", "codec"])
def test_plots_are_drawn_from_recorded_rows(tmp_path, machine_description, sum_rows, codec_rows, kind):
    draw, rows = {"sum": (plots.draw_sums, sum_rows), "codec": (plots.draw_codecs, codec_rows)}[kind]
    png, svg = draw(machine_description, rows, tmp_path / "plot")
    assert Path(png).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert xml.parse(svg).getroot().tag.endswith("svg")


def test_a_plot_of_one_size_and_exact_schemes_alone_is_drawn(tmp_path, machine_description, sum_rows):
    plots.draw_sums(machine_description, sum_rows[:3], tmp_path / "plot")


def test_every_scheme_of_a_plot_looks_different(sum_rows):
    rows = sum_rows + [{"scheme": f"codec{number}", "dense": False} for number in range(5)]
    looks = [tuple(sorted(map(str, style.items()))) for style in plots.styles(rows).values()]
    assert len(set(looks)) == len(looks)


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1.02e+03 B"), (16384, "16 KiB"), (1 << 28, "256 MiB"), (5 << 30, "5 GiB")]
)
def test_sizes_have_a_binary_unit(nbytes, text):
    assert report.size_text(nbytes) == text
