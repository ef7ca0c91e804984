"""What a call takes, by size: alone, one of ten under way at once, a group of tensors, a half, beside MPI_Allreduce.

All are measured in turn, round after round, so that they meet the same noise, in another order each time, so that each
comes after each other. A time is that of rank 0 from a barrier on; with ten under way, a tenth of it. The tensors of a
group have the size together. A file of the results can be compared with one of another commit that ran in turn with it.
"""

import itertools
import random
import sys
from functools import partial
from time import perf_counter

import numpy as np

import gqallreduce as gq
from gqallreduce.cli import machine
from gqallreduce.cli.dense import DEFAULT, Dense
from gqallreduce.cli.report import Report, Silent, size_text
from gqallreduce.cli.tables import print_plain
from gqallreduce.cli.world import are_schemes, environment, on_world
from gqallreduce.quantities import seconds_text
from gqallreduce.runtime.halves import has
from gqallreduce.scheduling.schedule import ALLGATHER, REDUCE_SCATTER
from gqallreduce.scheduling.topology import apart

SCHEMES = ("onebit/ef", "direct/raw", "direct/qsgd(bits=4)", "direct/adaptive(pi=64)/ef", "direct/terngrad")
UNDER_WAY = 10
GROUP = 40
MODEL = 200  # tensors, of 1 KiB each
WARM_UPS = 3
LEAST, MOST = 4, 4 << 20


def add_arguments(parser):
    """The options of the benchmark."""
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, metavar="SCHEME", help="schemes to measure")
    how = "what carries calls out: C++ (native), Python, or both in turn"
    parser.add_argument("--runtimes", nargs="+", default=["native"], choices=("native", "python"), help=how)
    which = "one call alone, ten under way together, a group of tensors (these by default); one half of an allreduce"
    parser.add_argument("--calls", nargs="+", default=["alone", "together", "group"], choices=WAYS, help=which)
    parser.add_argument("--max", type=int, default=MOST, metavar="BYTES", help="largest buffer (4 MiB)")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for one size (3)")
    parser.add_argument("--repetitions", type=int, default=500, help="most rounds of one size (500)")
    parser.add_argument("--link", help="what to call the link in the results")
    name = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/latency)"
    parser.add_argument("--output", default="bench/results/latency", metavar="NAME", help=name)


def run(arguments):
    """Runs the benchmark on COMM_WORLD; its exit status."""
    return on_world("latency", run_on, arguments)


def run_on(comm, arguments):
    """Runs the benchmark on a communicator; the exit status, the same on all ranks."""
    if not are_schemes("latency", comm, arguments.schemes):
        return 2
    schemes, calls = [gq.Scheme.parse(each) for each in arguments.schemes], arguments.calls
    if not any(calls_of(scheme, calls, comm.size) for scheme in schemes):
        if comm.rank == 0:
            named = ", ".join(arguments.schemes)
            missing = f"{named}: got schemes without {' or '.join(calls)}, expected one that has it"
            print(f"latency: {missing} (docs/schedules.md, Halves)", file=sys.stderr)
        return 2
    report = Report(f"{arguments.output}.jsonl") if comm.rank == 0 else Silent()
    about = machine.describe_job(comm, arguments.link)
    report.write("machine", about)
    found, todo = [], sizes(arguments.max)
    places = {runtime: comm.Dup() for runtime in arguments.runtimes}
    with report.progress(len(todo)) as progress:
        for nbytes in todo:
            progress.show(size_text(nbytes))
            found += _size(comm, places, nbytes, arguments)
            progress.step()
    for row in found:
        report.write("latency", row)
    if comm.rank == 0:
        _show(about, found, arguments.output)
    return 0


def sizes(most):
    """4 bytes, and sixteen times as much each time; 4 KiB; 40 and 200 tensors of 1 KiB; at last `most`."""
    found = [LEAST]
    while found[-1] * 16 < most:
        found.append(found[-1] * 16)
    return sorted({*found, *[each for each in (4 << 10, GROUP << 10, MODEL << 10) if each < most], max(most, LEAST)})


class _Way:
    """A way to sum buffers in place: of a scheme or of MPI, so many elements in each.

    Their values are normal, and written anew before each call: sums of sums would grow without end.
    """

    def __init__(self, scheme, how, counts):
        self.scheme, self.how = scheme, how
        rng = np.random.default_rng(counts)
        self._values = [rng.standard_normal(count, np.float32) for count in counts]
        self.buffers = [values.copy() for values in self._values]

    def renew(self):
        for buffer, values in zip(self.buffers, self._values, strict=True):
            buffer[:] = values

    def measure(self):
        """Seconds of a call."""
        began = perf_counter()
        self.call()
        return perf_counter() - began


class _Alone(_Way):
    """One call at a time; of MPI or of a scheme."""

    def __init__(self, name, call, nbytes):
        super().__init__(name, "alone", [nbytes // 4])
        self._call = call

    def call(self):
        self._call(self.buffers[0])


class _UnderWay(_Way):
    """Ten calls of a scheme, started and then waited for."""

    def __init__(self, name, allreduce, nbytes):
        super().__init__(name, f"{UNDER_WAY} under way", [nbytes // 4] * UNDER_WAY)
        self._allreduce, self._keys = allreduce, [str(place) for place in range(UNDER_WAY)]

    def call(self):
        pairs = zip(self._keys, self.buffers, strict=True)
        gq.wait_all([self._allreduce.start(buffer, key=key) for key, buffer in pairs])

    def measure(self):
        return super().measure() / UNDER_WAY


class _Group(_Way):
    """One call of a scheme on forty tensors, or on as many as there are elements."""

    def __init__(self, name, allreduce, nbytes):
        count = min(GROUP, nbytes // 4)
        cuts = [number * (nbytes // 4) // count for number in range(count + 1)]
        super().__init__(name, f"group of {GROUP}", [end - begin for begin, end in itertools.pairwise(cuts)])
        self._allreduce, self._keys = allreduce, [f"tensor {number}" for number in range(count)]

    def call(self):
        self._allreduce(self.buffers, key=self._keys)


class _Half(_Alone):
    """One half of an allreduce at a time. For an allgather the rank's part lies in the array already."""

    def __init__(self, which, name, allreduce, nbytes):
        call = allreduce.reduce_scatter if which == REDUCE_SCATTER else self._gather
        super().__init__(name, partial(call, key=which), nbytes)
        self.how, self._allreduce = which.replace("_", "-"), allreduce

    def _gather(self, buffer, key):
        self._allreduce.allgather(None, out=buffer, key=key)


def _alone(name, allreduce, nbytes):
    return _Alone(name, partial(allreduce, key="alone"), nbytes)


HALVES = (REDUCE_SCATTER, ALLGATHER)
WAYS = {"alone": _alone, "together": _UnderWay, "group": _Group} | {each: partial(_Half, each) for each in HALVES}


def calls_of(scheme, calls, size) -> list[str]:
    """Those of the calls that the scheme has."""
    return [each for each in calls if each not in HALVES or has(scheme, each, apart(size))]


class _Model(_Way):
    """A step of a gq.Reducer on tensors of 256 values, or on as many values in one tensor."""

    def __init__(self, name, comm, count):
        super().__init__(name, f"model of {count} tensor{'s' * (count > 1)}", [MODEL * 256 // count] * count)
        self._reducer = gq.Reducer(f"*={name}", comm=comm)
        self._gradients = [(f"tensor {number}", buffer) for number, buffer in enumerate(self.buffers)]

    def call(self):
        self._reducer(self._gradients)


def _made(text, runtime, comm):
    """(name, object) of a scheme whose calls one of the runtimes carries out."""
    with environment({"GQALLREDUCE_RUNTIME": runtime}):
        return text + ", in Python" * (runtime == "python"), gq.Allreduce(text, comm=comm)


def _size(comm, places, nbytes, arguments):
    """The rows of one size; places: a communicator for each runtime."""
    contenders = [_Alone(DEFAULT, Dense(DEFAULT, comm), nbytes)]
    for text, (runtime, place) in itertools.product(arguments.schemes, places.items()):
        text, allreduce = _made(text, runtime, place)
        calls = calls_of(allreduce.scheme, arguments.calls, comm.size)
        contenders += [WAYS[each](text, allreduce, nbytes) for each in calls]
        if nbytes == MODEL << 10 and runtime == "native" and "group" in arguments.calls:
            contenders += [_Model(text, comm, count) for count in (1, MODEL)]
    taken, began = [[] for _ in contenders], perf_counter()
    found, order = list(zip(contenders, taken, strict=True)), random.Random(nbytes)
    for number in range(-WARM_UPS, arguments.repetitions):
        for contender, seconds in order.sample(found, len(found)):
            contender.renew()
            comm.Barrier()
            passed = contender.measure()
            if number >= 0:
                seconds.append(passed)
        if comm.bcast(perf_counter() - began > arguments.seconds) and number >= 0:
            break
    return [
        {"scheme": each.scheme, "how": each.how, "bytes": nbytes, "dense": each.scheme == DEFAULT, "seconds": seconds}
        for each, seconds in zip(contenders, taken, strict=True)
    ]


def _show(about, rows, output):
    """The table of medians, and the plots."""
    from gqallreduce.cli import plots

    names = list(dict.fromkeys((row["scheme"], row["how"]) for row in rows))
    columns = sorted({row["bytes"] for row in rows})
    medians = {(row["scheme"], row["how"], row["bytes"]): float(np.median(row["seconds"])) for row in rows}
    shown = {each: seconds_text(median) for each, median in medians.items()}
    cells = [[*name, *(shown.get((*name, nbytes), "") for nbytes in columns)] for name in names]
    heads = [size_text(nbytes) for nbytes in columns]
    print_plain(("scheme", "calls", *heads), cells, right=heads)
    written = plots.draw_latencies(about, rows, output)
    print("written: " + ", ".join([f"{output}.jsonl", *written]))
