"""What the cost model says of clusters of 2 to thousands of ranks, and the memory that a rank's messages take there.

Nothing is measured here. Rates of codecs are multiples of memcpy's as measured by bench/codecs.py on one core; what the
cores and the memory of a node make of them, and what a link and a message cost, are the options.
"""

import gqallreduce as gq
from gqallreduce.backends.processor import Host
from gqallreduce.cli import machine
from gqallreduce.cli.report import Report, size_text
from gqallreduce.cli.tables import print_plain
from gqallreduce.coding.layout import Form
from gqallreduce.quantities import bandwidth, count, link_rate_text, nbytes, seconds, seconds_text
from gqallreduce.runtime.plan import Plan
from gqallreduce.scheduling import model
from gqallreduce.scheduling.topology import apart

SCHEMES = ("onebit/ef", "adaptive(pi=64)/ef", "qsgd(bits=4)", "bfloat16")
RATES = ("25Gbit/s", "100Gbit/s", "400Gbit/s")
MOST, SIZE, LATENCY, MESSAGE = 4096, "100MB", "2us", "3us"
# (threads of a rank, memcpy on one core, memcpy on all cores of its node): one rank on a node.
NODES = {"one core": (1, "10GB/s", "10GB/s"), "64 cores": (64, "10GB/s", "100GB/s")}
MEMORY_CODECS = "onebit", "adaptive(pi=64)", "raw", "topk(ratio=0.01)", "thc"
MEMORY_RANKS, MEMORY_SCHEDULES = (4, 16, 64, 256, 1024), ("direct", "allgather", "ring", "recursive_doubling")


def add_arguments(parser):
    """The options of the benchmark."""
    texts = "codecs as in a scheme, without a schedule: the best schedule is taken"
    parser.add_argument("--codecs", nargs="+", default=SCHEMES, metavar="CODEC", help=texts)
    parser.add_argument("--rates", nargs="+", type=bandwidth, default=[*map(bandwidth, RATES)], help="of a rank's link")
    parser.add_argument("--ranks", type=count, default=MOST, metavar="P", help=f"at most so many ({MOST})")
    parser.add_argument("--nbytes", type=nbytes, default=nbytes(SIZE), metavar="SIZE", help=f"of the buffer ({SIZE})")
    parser.add_argument("--latency", type=seconds, default=seconds(LATENCY), help=f"of a round ({LATENCY})")
    parser.add_argument("--message", type=seconds, default=seconds(MESSAGE), help=f"of each message ({MESSAGE})")
    name = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/scale)"
    parser.add_argument("--output", default="bench/results/scale", metavar="NAME", help=name)


def run(arguments):
    """Writes and draws the predictions; the exit status."""
    report = Report(f"{arguments.output}.jsonl")
    about = machine.describe()
    report.write("machine", about)
    rows = predictions(arguments)
    for row in rows:
        report.write("scale", row)
    memory = [memory_of(schedule, ranks, arguments.nbytes) for schedule in MEMORY_SCHEDULES for ranks in MEMORY_RANKS]
    memory += [memory_of("allgather", MEMORY_RANKS[-1], arguments.nbytes, codec) for codec in MEMORY_CODECS]
    for row in memory:
        report.write("memory", row)
    _show(about, rows, memory, arguments.output)
    return 0


def predictions(arguments):
    """A row for each node, rate, number of ranks and codec: its best schedule, and the speed-up over a dense sum."""
    found, elements = [], arguments.nbytes // 4
    codecs = {text: gq.Scheme.parse(text).codec for text in arguments.codecs}
    for node, (threads, core, together) in NODES.items():
        for rate in arguments.rates:
            profile = model.Profile(
                alpha=arguments.latency,
                software=arguments.message,
                beta=1 / rate,
                copy=1 / bandwidth(core),
                threads=threads,
                memory=1 / bandwidth(together),
            )
            ranks = 2
            while ranks <= arguments.ranks:
                dense = model.predict_dense(ranks, arguments.nbytes, profile)
                for text, codec in codecs.items():
                    times = {
                        name: model.predict(name, codec, ranks, elements, profile) for name in model.known(apart(ranks))
                    }
                    best = min(times, key=times.get)
                    row = {"scheme": text, "schedule": best, "seconds": times[best], "dense": dense}
                    found.append({"node": node, "rate": rate, "ranks": ranks, "bytes": arguments.nbytes, **row})
                ranks *= 2
    return found


def memory_of(schedule, ranks, size, codec="qsgd(bits=4)"):
    """The most bytes that the messages of a call take on rank 0, by its Plan."""
    form = Form((size // 4,), "C", "float32")
    plan = Plan(schedule, gq.Scheme.parse(codec).codec, 0, apart(ranks), (form,), False, Host())
    row = {"messages": plan.live, "lanes": plan.lanes, "lanes_at_once": min(plan.lanes, plan.lanes_at_once)}
    return {"scheme": codec, "schedule": schedule, "ranks": ranks, "bytes": size, **row}


def _show(about, rows, memory, output):
    """The tables, and the plot."""
    from gqallreduce.cli import plots

    counts = sorted({row["ranks"] for row in rows})
    shown = [each for each in counts if each in (2, 8, 64, 512, 4096)] or counts
    heads = ["node", "link", "scheme", *[f"P={each}" for each in shown]]
    cells = {}
    for row in rows:
        if row["ranks"] in shown:
            cell = cells.setdefault((row["node"], link_rate_text(8 * row["rate"]), row["scheme"]), [])
            cell.append(f"{row['dense'] / row['seconds']:.2f}x")
    print_plain(heads, [[*key, *cell] for key, cell in cells.items()], right=heads[3:])
    slowest = max(rows, key=lambda row: row["seconds"])
    print(f"Speed-up over the best dense algorithm; the longest sum takes {_time(slowest)}.")
    heads = ["schedule", "codec", "ranks", "lanes", "at once", "messages", "of the vector"]
    cells = [
        [
            row["schedule"],
            row["scheme"],
            *(str(row[each]) for each in ("ranks", "lanes", "lanes_at_once")),
            size_text(row["messages"]),
            _share(row),
        ]
        for row in memory
    ]
    print_plain(heads, cells, right=heads[2:])
    print("written: " + ", ".join([f"{output}.jsonl", *plots.draw_scale(about, rows, output)]))


def _share(row):
    return f"{row['messages'] / row['bytes']:.0%}"


def _time(row):
    return f"{seconds_text(row['seconds'])} ({row['node']}, {row['scheme']}, P = {row['ranks']})"
