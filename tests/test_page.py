"""`report`: what the page holds, and what it does not take."""

import importlib.util
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gqallreduce.__main__ import main
from gqallreduce.cli import page, views

RESULTS = Path(__file__).parents[1] / "bench" / "results"
needs_plotly = pytest.mark.skipif(importlib.util.find_spec("plotly") is None, reason="plotly is not installed")


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@needs_plotly
def test_all_results_of_this_project_make_a_page_with_plots(tmp_path, capsys):
    files = sorted(RESULTS.glob("*.jsonl"))
    assert main(["report", str(RESULTS), "-o", str(tmp_path / "all.html")]) == 0
    assert f"{len(files)} files" in capsys.readouterr().out
    text = (tmp_path / "all.html").read_text()
    elements = Elements(text.partition("<body>")[2].partition("<script")[0]).found
    assert [tag for tag, _ in elements].count("h2") == len(files)
    plots = [each["id"] for tag, each in elements if tag == "div" and each.get("class") == "plot"]
    figures = text.partition('id="figures">')[2].partition("</script>")[0]
    assert sorted(json.loads(figures)) == sorted(plots)
    assert len(plots) >= len(files)


@needs_plotly
def test_nothing_is_asked_of_the_network_and_no_text_becomes_code(tmp_path):
    evil = "</script><img src=x>"
    path = write(
        tmp_path / "a.jsonl",
        {"kind": "machine", "link": evil},
        {"kind": "sum", "scheme": evil, "bytes": 4, "seconds": [1.0]},
    )
    assert main(["report", path, "-o", str(tmp_path / "a.html")]) == 0
    text = (tmp_path / "a.html").read_text()
    body = text.partition("<body>")[2]
    assert "<img" not in body
    assert body.count("</script>") == 2
    assert "<noscript>" in body  # a browser without JavaScript is told what it does not show
    assert not [each for each in Elements(body).found if "src" in each[1] or each[0] == "link"]


@pytest.mark.parametrize("kind", views.VIEWS)
def test_each_view_draws_columns_that_results_have(kind):
    """A view of columns that no result has would be empty for ever."""
    rows = [row for path in RESULTS.glob("*.jsonl") for row in page.read(path)[1].get(kind, [])]
    assert rows
    for column in {column for view in views.VIEWS[kind] for column in (view.x, view.y, *view.by)}:
        assert any(column in row for row in rows), column


@needs_plotly
def test_half_a_character_leaves_no_empty_page(tmp_path):
    row = {"kind": "sum", "scheme": "\ud800", "bytes": 4, "seconds": [1.0]}
    path = write(tmp_path / "a.jsonl", {"kind": "machine"}, row)
    assert main(["report", path, "-o", str(tmp_path / "a.html")]) == 0
    assert "<table" in (tmp_path / "a.html").read_text()


@needs_plotly
@pytest.mark.parametrize("line", [b"\xff", b"[" * 200_000], ids=["no UTF-8", "deep"])
def test_bytes_that_are_no_row_are_named_with_their_line(tmp_path, capsys, line):
    (tmp_path / "a.jsonl").write_bytes(b'{"kind": "machine"}\n' + line + b"\n")
    assert main(["report", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "a.html")]) == 2
    assert "a.jsonl, line 2: no row of a benchmark" in capsys.readouterr().err


@needs_plotly
def test_all_runs_of_a_file_are_named(tmp_path):
    row = {"kind": "sum", "scheme": "raw", "bytes": 4, "seconds": [1.0]}
    runs = [{"kind": "machine", "command": "first --x"}, row, {"kind": "machine", "command": "second --y"}, row]
    path = write(tmp_path / "a.jsonl", *runs)
    assert main(["report", path, "-o", str(tmp_path / "a.html")]) == 0
    text = (tmp_path / "a.html").read_text()
    assert "first --x" in text
    assert "second --y" in text


def test_a_line_has_the_mean_of_seeds_at_each_place():
    rows = [
        {"scheme": "raw", "optimizer": "sgd", "step": step, "loss": step + seed} for seed in (0, 1) for step in (20, 10)
    ]
    (figure,) = [
        each for each in views.figures("evaluation", rows) if each["layout"]["title"]["text"] == "loss by step"
    ]
    assert [(each["name"], each["x"], each["y"]) for each in figure["data"]] == [("raw, sgd", [10, 20], [10.5, 20.5])]


def odd(**more):
    return {"kind": "sum", "scheme": "raw", "bytes": 4, "seconds": [1.0], **more}


@needs_plotly
@pytest.mark.parametrize(
    "row",
    [
        odd(speedup=float("nan")), odd(seconds=[float("inf"), 1.0]), odd(bytes=10**400), odd(bytes=[1, 2]),
        odd(seconds="soon"), odd(scheme="@FIGURES@"), odd(scheme=None), odd(bytes=[[1], 2]), odd(error={"a": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_odd_values_leave_a_page_that_a_browser_reads(tmp_path, row):
    path = write(tmp_path / "a.jsonl", {"kind": "machine"}, odd(), row)
    assert main(["report", path, "-o", str(tmp_path / "a.html"), "--title", "@BODY@"]) == 0
    figures = (tmp_path / "a.html").read_text().partition('id="figures">')[2].partition("</script>")[0]
    json.loads(figures, parse_constant=lambda name: pytest.fail(name))


def test_rows_of_a_kind_that_is_not_known_are_drawn_too():
    rows = [{"what": "a", "n": n, "value": n * n, "flag": True} for n in (1, 2, 3)]
    (figure,) = views.figures("novel", rows)
    assert figure["layout"]["title"]["text"] == "value by n"
    assert views.figures("novel", [{"what": "a"}]) == []


@needs_plotly
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            '{"kind": "machine"}\n{"kind": "sum", "sch',
            "line 2: no row of a benchmark, expected a .jsonl file of results; was it cut short?",
        ),
        ('{"kind": "machine"}\n', "no results"),
        ("", "no results"),
        ("[1]\n", "line 1: no row"),
        ('{"kind": 5}\n', "line 1: no row"),
        ('{"scheme": "raw"}\n', "line 1: no row"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path, capsys, content, complaint):
    (tmp_path / "x.jsonl").write_text(content)
    assert main(["report", str(tmp_path / "x.jsonl"), "-o", str(tmp_path / "x.html")]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "x.jsonl" in said
    assert not (tmp_path / "x.html").exists()


@needs_plotly
def test_a_folder_without_results_and_a_missing_file(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "a folder without result files" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_a_plot_has_no_more_lines_than_a_browser_can_draw():
    rows = [{"kind": "strange", "name": f"n{number % 5000}", "a": number, "b": number} for number in range(10_000)]
    (figure,) = views.figures("strange", rows)
    assert len(figure["data"]) == views.MOST_LINES
    assert figure["layout"]["title"]["text"] == f"b by a (the first {views.MOST_LINES} of 5000 lines)"


@pytest.mark.parametrize("length", [1, 999, 1000, 1001, 1999, 2000, 5000])
def test_a_long_line_keeps_its_ends_and_its_shape(length):
    rows = [{"kind": "strange", "a": number, "b": 2 * number} for number in range(length + 1)]
    (figure,) = views.figures("strange", rows)
    (line,) = figure["data"]
    assert len(line["x"]) == length + 1 if length < views.MOST_POINTS else len(line["x"]) <= views.MOST_POINTS
    assert (line["x"][0], line["x"][-1]) == (0, length)
    assert line["y"] == [2 * x for x in line["x"]]
