"""Codecs on a GPU, against a copy of the same data from one place of its memory to another in the same rounds.

Times are CUDA's, between events before and behind all that is launched for one round of the ring, and medians. A share
is the time of the copy over the time of the codec. Before it is timed, a codec's first message, what it lost and what
it decodes to are compared with the host's, bit for bit.
"""

import numpy as np

from gqallreduce.backends.cuda import runtime
from gqallreduce.backends.cuda.device import Device
from gqallreduce.backends.processor import Host
from gqallreduce.cli import machine, plots
from gqallreduce.cli.coder import Coder, interleaved, random_inputs, ring
from gqallreduce.cli.report import size_text
from gqallreduce.coding.levels import LevelCodec
from gqallreduce.errors import WireError
from gqallreduce.scheme import Scheme

OPERATIONS = ("encode", "decode", "decode_add")
BUFFERS = 7  # a ring each of inputs, sums, wires and two residuals; two for workspace, and room for what CuPy keeps
LEVELS_TARGET, TARGETS = 0.5, {"onebit": 0.5, "terngrad": 0.5, "adaptive": 0.25}


class OnGpu:
    """What bench/codecs.py measures on GPU 0. Error if there is none that can be used."""

    sizes = ("1MiB", "16MiB", "256MiB", "1GiB")
    output = "bench/results/codecs_cuda"
    draw = staticmethod(plots.draw_shares)

    def __init__(self):
        self.runtime = runtime.runtime(0)
        self.device = Device(self.runtime, aware=False)
        self.variants = (self.runtime.name,)
        self._room = self.runtime.free_memory

    def active(self):
        return self.device.active(None, None)

    def describe(self):
        return machine.describe(**machine.describe_gpu(self.runtime), last_level_cache=self.runtime.cache)

    def texts(self, usual):
        """Those that have kernels for a GPU; with feedback, they are measured without it as well."""
        usual = [text for text in usual if not Scheme.parse(text).codec.host_only]
        return [each for text in usual for each in dict.fromkeys((text.removesuffix("/ef"), text))]

    def too_large(self, nbytes):
        """Why this size is not measured; "" if it is."""
        need = BUFFERS * ring(nbytes, self.runtime.cache) * nbytes
        return f"which takes {size_text(need)} of {size_text(self._room)} free" if need > self._room else ""

    def measure(self, texts, nbytes, name, repetitions):
        """Rows of plain values, one per codec, each with the copy in its own rounds: one codec's memory at a time."""
        given = random_inputs(nbytes, self.runtime.cache)
        first = next(given)
        inputs = [self.device.adopt(first), *map(self.device.adopt, given)]
        return [self._row(text, inputs, first, repetitions) for text in texts]

    def _row(self, text, inputs, first, repetitions):
        coder = Coder(text, inputs, self.device)
        problem = wrong(coder, first)
        work = {"copy": lambda: self._copy(coder), "encode": coder.encode_again}
        work |= {"decode": coder.decode, "decode_add": coder.decode_add}
        seconds = interleaved(work, repetitions, self.runtime.seconds_of)
        problem = problem or found(self.device)
        coder.close()
        seconds = {name: [value / len(inputs) for value in values] for name, values in seconds.items()}
        return row(coder, seconds) | {"wrong": problem}

    def _copy(self, coder):
        for source, target in zip(coder.inputs, coder.sums, strict=True):
            self.runtime.copy(target, source)

    def table(self, rows):
        return shares_table(rows)


def row(coder, seconds):
    """The plain values of one codec at one size."""
    nbytes, copied = coder.inputs[0].nbytes, float(np.median(seconds["copy"]))
    made = {"codec": coder.text, "bytes": nbytes, "compression": coder.compression}
    made |= {"copy_seconds": seconds["copy"], "copy_gbps": nbytes / copied / 1e9}
    for operation in OPERATIONS:
        typical = float(np.median(seconds[operation]))
        made[f"{operation}_seconds"] = seconds[operation]
        made[f"{operation}_gbps"] = nbytes / typical / 1e9
        made[f"{operation}_share"] = copied / typical
    target = target_of(coder.codec)
    least = min(made[f"{operation}_share"] for operation in OPERATIONS)
    return made | {"target": target, "met": None if target is None else least >= target}


def target_of(codec):
    """The share that each operation of this codec is to reach; None if none was set."""
    return LEVELS_TARGET if isinstance(codec, LevelCodec) else TARGETS.get(codec.name)


def wrong(coder, first):
    """What differs between the first message of the device and that of the host; "" if nothing does.

    The messages compared are the second ones: with feedback, of values that have a residual. They are those that
    `encode_again` makes.
    """
    host = Coder(coder.text, [first], Host())
    for each in (coder, host):
        each.encode()
        each.settle()
    names = ("message", "residual", "decoded values", "values of decode_add")
    for name, ours, theirs in zip(names, _outcome(coder), _outcome(host), strict=True):
        if not np.array_equal(_bits(ours), _bits(theirs)):
            return f"the {name} is not the host's" if name in names[:2] else f"the {name} are not the host's"
    return found(coder.processor)


def _outcome(coder):
    """The first message, what it lost and what it decodes to, on the host."""
    decoded, added, _ = coder.decoded()
    made = coder.wires[0][: coder.lengths[0]], coder.new_residual[0], decoded, added
    return [None if array is None else coder.processor.on_host(array) for array in made]


def _bits(array):
    return np.zeros(0) if array is None else array.view(np.uint8)


def found(device):
    """What the kernels have found since the last question; "" if all was well."""
    outcome = device.settle()
    while not outcome.ready:
        pass
    try:
        return "a value is not finite" if outcome.flawed else ""
    except WireError as problem:
        return str(problem)


def shares_table(rows):
    """The table of one size."""
    from rich import box
    from rich.table import Table

    title = f"{size_text(rows[0]['bytes'])} of float32; shares are of the speed of a copy in the same rounds"
    table = Table(title=title, title_justify="left", title_style="", header_style="", box=box.SIMPLE_HEAD)
    table.add_column("codec", no_wrap=True)
    columns = [column for operation in OPERATIONS for column in (f"{operation} GB/s", "share")]
    for name in ("compression", *columns, "copy GB/s", "target", "met"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in rows:
        speeds = [
            text
            for operation in OPERATIONS
            for text in (f"{each[f'{operation}_gbps']:.4g}", f"{100 * each[f'{operation}_share']:.0f} %")
        ]
        aim = "-" if each["target"] is None else f"{100 * each['target']:.0f} %"
        met = {None: "-", True: "yes", False: "no"}[each["met"]]
        table.add_row(each["codec"], f"{each['compression']:.2f}", *speeds, f"{each['copy_gbps']:.4g}", aim, met)
    return table
