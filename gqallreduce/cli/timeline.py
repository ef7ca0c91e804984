"""`timeline`: draws the traces of ranks (`Allreduce(trace=...)`), a panel for each rank and a row for each lane."""

import json
import sys
from collections import defaultdict

from gqallreduce.cli.needs import lacking
from gqallreduce.cli.tables import print_plain
from gqallreduce.quantities import seconds_text

COLOURS = {
    "encode": "#D55E00", "begin sum": "#E69F00", "decode": "#0072B2", "share error": "#56B4E9", "finish": "#5B4B8A",
    "join": "#8C6D00", "wait": "#DDDDDD", "send": "#009E73", "prepare": "#CC79A7",
}  # fmt: skip


def add_arguments(parser):
    """The options of `timeline`."""
    parser.add_argument("traces", nargs="+", metavar="FILE", help="traces of ranks: calls.0.json calls.1.json")
    parser.add_argument("--last", type=float, metavar="MS", help="only the last milliseconds (all)")
    parser.add_argument("--output", default="timeline", metavar="NAME", help="writes NAME.png and NAME.svg (timeline)")


def run(arguments):
    """Prints what each rank did for how long, and draws it; the exit status."""
    if lack := lacking(["matplotlib"]):
        print(f"timeline: {lack}", file=sys.stderr)
        return 2
    try:
        ranks = [spans(path) for path in arguments.traces]
    except (OSError, ValueError, KeyError) as problem:
        print(f"timeline: {problem}", file=sys.stderr)
        return 2
    if not any(ranks):
        print("timeline: no lane did anything in these traces: no call was made, or MPI's own sum", file=sys.stderr)
        return 2
    end = max(span["ended"] for rank in ranks for span in rank)
    begin = min(span["began"] for rank in ranks for span in rank)
    if arguments.last is not None:
        begin = max(begin, end - 1e3 * arguments.last)
    shown = [[span for span in rank if span["ended"] > begin] for rank in ranks]
    for path, whole, part in zip(arguments.traces, ranks, shown, strict=True):
        if whole and not part:
            early = seconds_text(1e-6 * (end - max(span["ended"] for span in whole)))
            print(
                f"timeline: {path} ends {early} before the last: other calls, or a clock that is wrong", file=sys.stderr
            )
    print_plain(("trace", *COLOURS), [_sums(path, rank) for path, rank in zip(arguments.traces, shown, strict=True)])
    print("written: " + ", ".join(draw(arguments.traces, shown, begin, end, arguments.output)))
    return 0


def spans(path):
    """What is in a trace: dicts of name, lane, began, ended; in microseconds of the host's clock."""
    with open(path) as file:
        text = file.read().rstrip()
    cut_off = not text.endswith("]")  # that of a rank which did not come to its end
    events = json.loads(text.rstrip(",") + "]" if cut_off else text)
    found, sends, zero = [], {}, 0.0
    for event in events:
        span = {"name": event["name"], "lane": event.get("tid"), "began": zero + event.get("ts", 0.0)}
        if event["ph"] == "M":
            zero = 1e6 * event["args"].get("clock", 0.0)
        elif event["ph"] == "X":
            found.append({**span, "ended": span["began"] + event["dur"]})
        elif event["ph"] == "b":
            sends[event["id"]] = span
        elif event["ph"] == "e" and event["id"] in sends:
            found.append({**sends.pop(event["id"]), "ended": span["began"]})
    return found


def _sums(path, rank):
    seconds = defaultdict(float)
    for span in rank:
        seconds[span["name"]] += 1e-6 * (span["ended"] - span["began"])
    return [path, *(seconds_text(seconds[name]) if name in seconds else "-" for name in COLOURS)]


def draw(paths, ranks, begin, end, name):
    """Lanes from below; what is sent lies as a thin line under its lane. Returns the paths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    lanes = 1 + max(span["lane"] for rank in ranks for span in rank)
    size = 11, 1.2 + len(ranks) * (0.7 + 0.32 * lanes)
    drawing, axes = pyplot.subplots(len(ranks), 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    for panel, path, rank in zip(axes.flat, paths, ranks, strict=True):
        for kind, colour in COLOURS.items():
            for lane in range(lanes):
                mine = [span for span in rank if (span["name"], span["lane"]) == (kind, lane)]
                bars = [(1e-3 * (span["began"] - begin), 1e-3 * (span["ended"] - span["began"])) for span in mine]
                place = (lane - 0.45, 0.12) if kind == "send" else (lane - 0.3, 0.65)
                panel.broken_barh(bars, place, facecolors=colour, linewidth=0)
        panel.set(title=path, yticks=range(lanes), ylabel="lane", xlim=(0, 1e-3 * (end - begin)))
        panel.spines[["top", "right"]].set_visible(False)
    axes.flat[-1].set_xlabel("milliseconds")
    handles = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items()]
    drawing.legend(handles=handles, loc="outside lower center", ncols=len(COLOURS), frameon=False)
    written = [f"{name}.png", f"{name}.svg"]
    for each in written:
        drawing.savefig(each, dpi=110, metadata={"Date": None} if each.endswith(".svg") else None)
    pyplot.close(drawing)
    return written
