"""Which plots the rows of a result file make: of each kind of rows, what lies along the axes and what makes a line."""

from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median

from gqallreduce.cli.plots import COLOURS

AXES = "xaxis", "yaxis"
MOST_POINTS = 1000  # of one line
MOST_LINES = 100  # of one plot: more cannot be told apart, and with some ten thousand a browser hangs
LARGEST = 1e300
DASHES = "solid", "dash", "dot"
WIDE = 4  # so many times as large is the largest value as the least from which on an axis is logarithmic


@dataclass(frozen=True)
class View:
    """x, y: columns; by: those whose values together make one line; bars: in place of lines."""

    x: str
    y: str
    by: tuple[str, ...] = ("scheme",)
    bars: bool = False


VIEWS = {
    "sum": [View("bytes", "seconds"), View("bytes", "speedup")],
    "latency": [View("bytes", "seconds", ("scheme", "how"))],
    "codec": [View("codec", "encode_ratio", (), bars=True), View("codec", "decode_add_ratio", (), bars=True)],
    "bits": [View("codec", name, ("data",), bars=True) for name in ("fixed", "entropy", "huffman", "rans", "elias")],
    "auto": [View("bytes", "auto"), View("bytes", "ratio")],
    "overlap": [View("bytes", "hidden", ("scheme", "computes", "how"))],
    "evaluation": [
        View(x, y, ("scheme", "optimizer"))
        for y in ("accuracy", "test_loss", "loss")
        for x in ("step", "seconds", "sent")
    ],
    "run": [View("steps", "loss", ("data", "scheme", "delay")), View("scheme", "loss", ("optimizer",), bars=True)],
    "training": [View("scheme", "accuracy", (), bars=True)],
    "loss": [View("K", "loss", ("order", "reuse"))],
    "energy": [View("K", "loss", ("order", "reuse"))],
    "time": [View("bytes", name, ()) for name in ("dense", "raw", "gradiveq")],
    "error": [View("step", "error", ("scheme", "layer"))],
    "workers": [View("workers", "error")],
    "layer": [View("layer", "error", ("scheme",), bars=True)],
    "low_rank": [View("side", name, ("rank",)) for name in ("plain", "feedback")],
    "columns": [View("column", name, ("codec",)) for name in ("bits", "error")],
    "sparse_sum": [View("ranks", "bytes", ("schedule", "sums", "ratio", "places"))],
    "updates": [View("bytes", "share", ("codec",))],
    "lost": [View("method", "lost", (), bars=True)],
}


def figures(kind, rows):
    """Plotly's figures, as plain dicts with `data` and `layout`, of the rows of a kind."""
    found = []
    for view in VIEWS.get(kind) or _guessed(rows):
        figure = _figure(view, rows)
        if figure is not None:
            found.append(figure)
    return found


def plain(value):
    """A value of a row as it is shown: of a list of numbers the median; None for what is neither number nor text."""
    if isinstance(value, list) and value and all(_is_number(each) for each in value):
        return median(value)
    return value if _is_number(value) or isinstance(value, (str, bool)) else None


def _is_number(value):
    """Finite, and no larger than a plot can show."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _guessed(rows):
    """Of a kind that is not known: the last number against the first one that takes several values, by all texts."""
    numbers = [name for name in rows[0] if all(_is_number(row.get(name)) for row in rows)]
    texts = tuple(name for name in rows[0] if all(isinstance(row.get(name), str) for row in rows))
    across = [name for name in numbers if len({row[name] for row in rows}) > 1]
    return [View(across[0], across[-1], texts)] if len(across) > 1 else []


def _figure(view, rows):
    """None if the rows lack a column."""
    used = [row for row in rows if view.x in row and view.y in row]
    lines = {}
    for row in used:
        name = ", ".join(str(row[each]) for each in view.by if row.get(each) is not None) or view.y
        lines.setdefault(name, []).extend(_points(view, row))
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return None
    drawn = {name: _thinned(_in_order(_means(points))) for name, points in islice(lines.items(), MOST_LINES)}
    data = [_trace(view, name, points, number) for number, (name, points) in enumerate(drawn.items())]
    layout = _layout(view, [point for points in drawn.values() for point in points], len(drawn))
    if len(drawn) < len(lines):
        layout["title"]["text"] += f" (the first {len(drawn)} of {len(lines)} lines)"
    return {"data": data, "layout": layout}


def _in_order(points):
    """From left to right; texts stay as they came."""
    return points if any(isinstance(x, str) for x, _ in points) else sorted(points)


def _thinned(points):
    """At most so many points of a line, at equal distances, the first and the last among them."""
    step = -(-(len(points) - 1) // (MOST_POINTS - 1))
    return points if len(points) <= MOST_POINTS else [*points[:-1:step], points[-1]]


def _points(view, row):
    """(x, y): one, or all of two lists of the same length."""
    x, y = row[view.x], row[view.y]
    if isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
        return [pair for pair in zip(x, y, strict=True) if all(map(_is_number, pair))]
    x, y = plain(x), plain(y)
    return [] if x is None or not _is_number(y) else [(x, y)]


def _means(points):
    """Points of one x are one, of the mean: other seeds."""
    by_x = {}
    for x, y in points:
        by_x.setdefault(x, []).append(y)
    return [(x, fmean(values)) for x, values in by_x.items()]


def _trace(view, name, points, number):
    """Lines beyond the colours have these again, dashed."""
    again, colour = divmod(number, len(COLOURS))
    x, y = ([point[place] for point in points] for place in (0, 1))
    if view.bars:
        return {"name": name, "x": x, "y": y, "type": "bar", "marker": {"color": COLOURS[colour]}}
    line = {"color": COLOURS[colour], "width": 2, "dash": DASHES[again % len(DASHES)]}
    return {"name": name, "x": x, "y": y, "type": "scatter", "mode": "lines+markers", "line": line}


def _layout(view, points, lines):
    """The title names the axes: on a telephone there is no room for more."""
    axes = {name: {"automargin": True, **_kind_of_axis(view, points, place)} for place, name in enumerate(AXES)}
    legend = {"orientation": "h", "y": -0.15, "yanchor": "top", "font": {"size": 11}}
    title = {"text": f"{view.y} by {view.x}", "font": {"size": 14}}
    margin = {"l": 50, "r": 10, "t": 40, "b": 40}
    return {"title": title, "showlegend": lines > 1, "legend": legend, "margin": margin, "hovermode": "closest", **axes}


def _kind_of_axis(view, points, place):
    values = [point[place] for point in points]
    if any(isinstance(each, str) for each in values):
        return {"type": "category"}
    wide = not view.bars and min(values) > 0 and max(values) > WIDE * min(values)
    return {"type": "log" if wide else "linear"}
