"""`plan`: what an allreduce should take, by the cost model, for every scheme and for a dense one. Needs no MPI.

A prediction ranks schemes and shows where a link ends and latency begins; it replaces no measurement. With --program it
prints what one rank does instead, instruction by instruction.
"""

import dataclasses
import sys
from dataclasses import dataclass

import gqallreduce as gq
from gqallreduce.cli.tables import print_table
from gqallreduce.coding.layout import Form
from gqallreduce.quantities import bandwidth, bytes_text, count, nbytes, seconds, seconds_text
from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling import model
from gqallreduce.scheduling.instructions import Part, as_coded, instructions
from gqallreduce.scheduling.profile import Profile, load, read
from gqallreduce.scheduling.schedule import Wire
from gqallreduce.scheduling.topology import in_hosts
from gqallreduce.scheme import AUTO, DENSE, MPI_SUM

COLUMNS = ("scheme", "time", "speed-up", "sent per rank", "rounds", "messages")
ITEMSIZE = 4
RANKS_MOST, NBYTES_MOST = 10**6, 1 << 50


@dataclass(frozen=True)
class Prediction:
    """One row: a scheme or "dense", seconds, bytes sent by a rank, rounds, messages (None: the MPI's own affair)."""

    scheme: str
    seconds: float
    bytes_sent: float
    rounds: int | None = None
    messages: int | None = None


def add_arguments(parser):
    """The options of `plan`."""
    usual = Profile()
    parser.add_argument("--ranks", type=count, required=True, metavar="P", help="number of ranks")
    size = "of the float32 buffer: 100MB, 64MiB"
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--nbytes", type=nbytes, metavar="SIZE", help=size)
    program = "print the instructions of one rank instead: direct/qsgd, ring/raw"
    what.add_argument("--program", metavar="SCHEME", help=program)
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="with --program: which rank (default 0)")
    rate = f"of a node's link, which its ranks share: 100Gbit/s, 12.5GB/s (default {8 * 1e-9 / usual.beta:g}Gbit/s)"
    parser.add_argument("--bandwidth", type=bandwidth, metavar="RATE", help=rate)
    latency = f"of a round: 2us (default {usual.alpha * 1e6:g}us)"
    parser.add_argument("--latency", type=seconds, metavar="TIME", help=latency)
    copy = f"memcpy of float32 on one core (default {1e-9 / usual.copy:g}GB/s)"
    parser.add_argument("--memory", type=bandwidth, metavar="RATE", help=copy)
    parser.add_argument("--threads", type=count, metavar="N", help="cores of a rank (default 1)")
    shared = "memcpy of float32 on all cores of a node at once, which its ranks share (default: no limit)"
    parser.add_argument("--node-memory", type=bandwidth, metavar="RATE", help=shared)
    parser.add_argument("--ranks-per-node", type=count, default=1, metavar="N", help="side by side (default 1)")
    each = f"of each message, in MPI and here (default {usual.software * 1e6:g}us)"
    parser.add_argument("--message", type=seconds, metavar="TIME", help=each)
    measured = "of a machine, as `calibrate` has written it; options here come before it"
    parser.add_argument("--profile", metavar="FILE", help=measured)
    texts = "codecs as in a scheme, without a schedule (every codec's example)"
    parser.add_argument("--codecs", nargs="+", metavar="CODEC", help=texts)


def run(arguments):
    """Prints the table, best first; 0, or 2 for a buffer, codec or rank that cannot be."""
    try:
        _require_limits(arguments)
        topology = in_hosts(arguments.ranks, arguments.ranks_per_node)
        if arguments.program is not None:
            _print_program(arguments.program, arguments.rank, topology)
            return 0
        codecs = [_codec(text) for text in arguments.codecs or _examples()]
        if arguments.nbytes % ITEMSIZE:
            raise ValueError(f"--nbytes: got {arguments.nbytes} bytes, expected whole float32 values of {ITEMSIZE}")
        profile = profile_of(arguments)
        _warn_of_other_jobs(arguments, topology)
    except (OSError, ValueError) as problem:
        print(f"plan: {problem}", file=sys.stderr)
        return 2
    found = predictions(codecs, topology, arguments.nbytes // ITEMSIZE, profile)
    dense = next(each for each in found if each.scheme == model.DENSE)
    print_table(COLUMNS, [_cells(each, dense.seconds) for each in found], right=COLUMNS[1:])
    print(_assumptions(arguments, profile))
    return 0


def _require_limits(arguments):
    """ValueError for more ranks, or bytes, than a table can be made of in a while."""
    for name, most in (("ranks", RANKS_MOST), ("ranks_per_node", RANKS_MOST), ("nbytes", NBYTES_MOST)):
        found = getattr(arguments, name) or 0
        if found > most:
            raise ValueError(f"--{name.replace('_', '-')}: got {found}, expected {most} at most")


def _warn_of_other_jobs(arguments, topology):
    """Says it where a profile was measured with other numbers of ranks on hosts."""
    if arguments.profile is None:
        return
    measured = read(arguments.profile)[1].ranks
    ranks = tuple(sorted(map(len, topology.groups), reverse=True))
    if measured != ranks:
        both = f"{_on_hosts(measured)}, not {_on_hosts(ranks)}"
        print(f"plan: {arguments.profile} was measured with {both}; times may be far off", file=sys.stderr)


def _on_hosts(ranks):
    each = str(ranks[0]) if len(set(ranks)) == 1 else ", ".join(map(str, ranks))
    return f"{each} ranks on {len(ranks)} host{'s' * (len(ranks) > 1)}"


def profile_of(arguments):
    """What the options say of a machine; what they do not say, the profile or the usual one does."""
    known = Profile() if arguments.profile is None else load(arguments.profile)
    given = {
        "alpha": arguments.latency,
        "software": arguments.message,
        "beta": arguments.bandwidth and 1 / arguments.bandwidth,
        "copy": arguments.memory and 1 / arguments.memory,
        "threads": arguments.threads,
        "memory": arguments.node_memory and arguments.ranks_per_node / arguments.node_memory,
    }
    return dataclasses.replace(known, **{name: value for name, value in given.items() if value is not None})


def _print_program(text, rank, topology):
    """The instructions of a rank, one a line; every lane of a call runs them."""
    scheme, ranks = gq.Scheme.parse(text), topology.size
    if scheme.schedule in (None, AUTO, DENSE, MPI_SUM):
        raise ValueError(f"--program: got {text!r}, expected a schedule before it, as in direct/{scheme.codec.name}")
    if not 0 <= rank < ranks:
        raise ValueError(f"--rank: got {rank}, expected 0 to {ranks - 1}")
    program = instructions(SCHEDULES[scheme.schedule], rank, topology)
    if not scheme.codec.indirect and scheme.codec.bind(Form((1,), "C", "float32")).of_sums.exact:
        program = as_coded(program)
    for number, each in enumerate(program):
        shown = {name: value for name, value in each._asdict().items() if name not in ("exact", "clears") or value}
        fields = "  ".join(f"{name}={_value(value)}" for name, value in shown.items())
        print(f"{number:>{len(str(len(program)))}}  {type(each).__name__:<9}{fields}")
    print(f"{scheme.schedule}, rank {rank} of {ranks}: {len(program)} instructions, which every lane runs.")


def _value(value):
    """Wires as chunk@author, exact ones with =, parts as slot.number."""
    if isinstance(value, Wire):
        return f"{value.chunk}@{value.author}" + "=" * value.exact
    if isinstance(value, Part):
        return f"{value.slot}.{value.number}"
    if isinstance(value, tuple):
        return ",".join(map(_value, value))
    return str(value)


def predictions(codecs, ranks, elements, profile):
    """Every codec (a Scheme without schedule) on every schedule, and dense; the shortest time first.

    ranks: how many, or their Topology.
    """
    topology = model.topology_of(ranks)
    found = [_dense(topology, elements * ITEMSIZE, profile)]
    for scheme in codecs:
        for schedule in model.known(topology):
            done = model.work(schedule, topology)
            time = model.predict(schedule, scheme.codec, topology, elements, profile)
            sent = model.bytes_sent(schedule, scheme.codec, topology, elements)
            found.append(Prediction(f"{schedule}/{scheme}", time, sent, done.rounds, done.messages))
    return sorted(found, key=lambda each: (each.seconds, each.scheme))


def _dense(topology, size, profile):
    """Of the bytes only those of a ring are known: each rank sends all but its own share, twice."""
    return Prediction(
        model.DENSE, model.predict_dense(topology, size, profile), 2 * size * (topology.size - 1) / topology.size
    )


def _examples():
    """The example of every codec, without its schedule."""
    return [entry.without_schedule for entry in gq.schemes() if entry.kind == "codec"]


def _codec(text):
    scheme = gq.Scheme.parse(text)
    if scheme.schedule is not None:
        raise ValueError(f"--codecs: got {text!r}, expected it without a schedule; all schedules are shown")
    return scheme


def _cells(each, dense):
    speedup = f"{dense / each.seconds:.2f}x" if each.seconds else "-"
    moves = ["-" if number is None else f"{number}" for number in (each.rounds, each.messages)]
    return [each.scheme, seconds_text(each.seconds), speedup, bytes_text(each.bytes_sent), *moves]


def _assumptions(arguments, profile):
    one = "a rank while all ranks work" if arguments.profile else "one core"
    cores = one if profile.threads == 1 else f"each of {profile.threads} cores"
    return (
        f"Predicted for P = {arguments.ranks} and {bytes_text(arguments.nbytes)} of float32: "
        f"{_call_text(profile)}{seconds_text(profile.alpha)} a round, {seconds_text(profile.software)} a message, "
        f"{8e-9 / profile.beta:.3g} Gbit/s a node of {_ranks(arguments)}, "
        f"memcpy at {1e-9 / profile.copy:.3g} GB/s on {cores}{_at_most(profile)}{_overlap_text(profile)}. "
        f"Messages are those of one lane. {_dense_text(profile, arguments.nbytes)}; its bytes are the ring's."
    )


def _call_text(profile):
    return f"{seconds_text(profile.call)} a call, " if profile.call else ""


def _overlap_text(profile):
    return f", {profile.overlap:.0%} of the possible overlap" if profile.overlap < 1 else ""


def _dense_text(profile, nbytes):
    if profile.dense:
        largest = profile.dense[-1][0]
        more = f", beyond its largest size of {bytes_text(largest)} in proportion" if nbytes > largest else ""
        return f"dense is MPI_Allreduce as the profile has it{more}"
    return "dense is the best of a ring, recursive doubling, and halving and doubling"


def _ranks(arguments):
    return "one rank" if arguments.ranks_per_node == 1 else f"{arguments.ranks_per_node} ranks"


def _at_most(profile):
    return f", at most {1e-9 / profile.memory:.3g} GB/s for a rank" if profile.memory else ""
