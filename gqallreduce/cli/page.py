"""`report`: one page to look at, from any result files of the benchmarks: tables to sort, plots to hover over.

The page needs no network: the plotting library (plotly.js) is part of it.
"""

import html
import json
import re
import sys
from pathlib import Path

from gqallreduce.cli.needs import lacking
from gqallreduce.cli.report import rows_of
from gqallreduce.cli.views import figures, plain

ROWS_MOST = 400  # of one table
FACTS = "processor", "cores", "ranks", "nodes", "link", "mpi", "simd", "commit", "data", "command"
TEMPLATE = Path(__file__).with_name("page.html")


def add_arguments(parser):
    """The options of `report`."""
    parser.add_argument("results", nargs="+", metavar="FILE", help="result files (.jsonl), or folders of them")
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help="the page (report.html)")
    parser.add_argument("--title", default="Results of gqallreduce", help="its heading")


def run(arguments):
    """Writes the page; 0, or 2 for what cannot be read."""
    if lack := lacking(["plotly"]):
        print(f"report: {lack}", file=sys.stderr)
        return 2
    try:
        found = {str(path): read(path) for path in paths(arguments.results)}
        text, plots = page(found, arguments.title)
        Path(arguments.output).write_bytes(text.encode(errors="replace"))  # a lone surrogate becomes a question mark
    except (OSError, ValueError) as problem:
        print(f"report: {problem}", file=sys.stderr)
        return 2
    print(f"written: {arguments.output}: {len(found)} files, {plots} plots, {len(text) / 1e6:.1f} MB")
    return 0


def paths(given):
    """The files, those of folders in the order of their names. ValueError for a folder without results."""
    found = []
    for each in map(Path, given):
        inside = sorted(each.glob("*.jsonl")) if each.is_dir() else [each]
        if not inside:
            raise ValueError(f"{each}: a folder without result files, expected *.jsonl of a benchmark")
        found += inside
    return found


def read(path):
    """([machine, ...], kind -> rows) of a file, of one run or of several put together.

    ValueError says which line is none of a benchmark's.
    """
    machines, kinds = [], {}
    for kind, row in rows_of(path):
        if kind == "machine":
            machines.append(row)
        else:
            kinds.setdefault(kind, []).append(row)
    if not kinds:
        raise ValueError(f"{path}: no results, expected JSON lines of a benchmark")
    return machines, kinds


def page(found, title):
    """(text, number of plots) of the page of all files: path -> ([machine, ...], kind -> rows)."""
    from plotly.offline import get_plotlyjs

    drawn, parts = {}, [f"<h1>{html.escape(title)}</h1>", _contents(found)]
    for number, (path, (machines, kinds)) in enumerate(found.items()):
        parts.append(f'<h2 id="file{number}">{html.escape(Path(path).stem)}</h2>')
        for machine in machines:
            facts = [f"{name}: {machine[name]}" for name in FACTS if machine.get(name) is not None]
            parts.append(f'<p class="facts">{html.escape("; ".join(facts))}</p>')
        for kind, rows in kinds.items():
            parts += _of_kind(f"plot{number}-{kind}", kind, rows, drawn)
    values = {
        "TITLE": html.escape(title),
        "BODY": "\n".join(parts),
        "FIGURES": _script(drawn),
        "PLOTLY": get_plotlyjs(),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return re.sub("@([A-Z]+)@", lambda found: values[found[1]], text), len(drawn)


def _contents(found):
    links = [f'<a href="#file{number}">{html.escape(Path(path).stem)}</a>' for number, path in enumerate(found)]
    return f"<nav>{''.join(links)}</nav>"


def _script(drawn):
    """JSON within a page: no text in it ends the script."""
    return json.dumps(drawn, allow_nan=False).replace("<", "\\u003c")


def _of_kind(name, kind, rows, drawn):
    """Plots and the table of one kind of rows; the figures go into `drawn`."""
    found = {f"{name}-{number}": figure for number, figure in enumerate(figures(kind, rows))}
    drawn.update(found)
    plots = "".join(f'<div class="plot" id="{html.escape(each)}"></div>' for each in found)
    parts = [f"<h3>{html.escape(kind)}: {len(rows)} rows</h3>", f'<div class="plots">{plots}</div>' if plots else ""]
    if len(rows) > ROWS_MOST:
        parts.append(f'<p class="note">The first {ROWS_MOST} of them:</p>')
    return [*parts, _table(rows[:ROWS_MOST])]


def _table(rows):
    """Lists of numbers are shown by their median."""
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if plain(value) is not None))
    texts = {name for name in names if any(isinstance(row.get(name), (str, bool)) for row in rows)}
    heads = "".join(f'<th tabindex="0"{_class(name in texts)}>{html.escape(name)}</th>' for name in names)
    body = "".join("<tr>" + "".join(_cell(row.get(name), name in texts) for name in names) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _class(is_text):
    return ' class="text"' if is_text else ""


def _cell(value, is_text):
    shown = plain(value)
    if shown is None:
        return f"<td{_class(is_text)}></td>"
    if isinstance(shown, (str, bool)):
        return f"<td{_class(is_text)}>{html.escape(str(shown))}</td>"
    return f'<td{_class(is_text)} data-value="{shown}">{shown:.4g}</td>'
