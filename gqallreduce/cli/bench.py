"""`bench`: sums of square matrices, every scheme against MPI_Allreduce by default and forced to ring, in one run.

Run it under mpirun or srun, one process per rank. All schemes of a size are measured in the same rounds; how sure a
number is shows in its least and largest time. The matrices lie in host memory, or with `--device cuda` in that of GPUs,
which the ranks of a node take in turn.
"""

import sys

import numpy as np

import gqallreduce as gq
from gqallreduce.cli import machine
from gqallreduce.cli.exact import Check, Reference
from gqallreduce.cli.measure import ENOUGH, FIRST, Quantized, groups, interleave, pooled, round_seconds, rows
from gqallreduce.cli.places import Buffers, place_of
from gqallreduce.cli.report import Report, Silent, size_text, sums_table
from gqallreduce.cli.twins import Twins
from gqallreduce.cli.world import on_world
from gqallreduce.errors import Error

SCHEMES = (
    "raw",
    "direct/onebit/ef",
    "direct/adaptive(pi=64)/ef",
    "direct/qsgd(bits=4)",
    "direct/qsgd(bits=2, bucket=128)",
    "ring/qsgd(bits=4)",
    "auto/adaptive(pi=64)/ef",
)
AWARE = {"yes": True, "no": False, None: None}
ON_GPUS = ("device", "gpus", "cuda_aware")
SAID = ("processor", "cores", "cores_per_rank", "ranks", "nodes", "link", *ON_GPUS, "mpi", "simd", "commit", "dense")
BUFFERS = 5  # data, the buffer, two residual buffers, workspace
LARGEST = 8192
SPREAD = 0.4  # standard deviation of the data, about that of a layer's gradients in the original benchmark


def add_arguments(parser):
    """The options of `bench`."""
    parser.add_argument("--min", type=int, default=64, metavar="N", help="smallest side of a matrix (64)")
    most = f"largest side (what fits in half of the free memory, at most {LARGEST})"
    parser.add_argument("--max", type=int, metavar="N", help=most)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, metavar="SCHEME", help="schemes to measure")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for one size, warm-up included (10)")
    parser.add_argument("--repetitions", type=int, default=51, help="most repetitions of one size (51)")
    parser.add_argument("--check", action="store_true", help="verify every result; exit with 1 if one is wrong")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (0)")
    parser.add_argument("--link", help="what to call the link in the results")
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="where the matrices lie (host)")
    aware = "may MPI be given GPU memory? (what the MPI says of itself)"
    parser.add_argument("--cuda-aware", choices=("yes", "no"), help=aware)
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/allreduce_synthetic; cuda: ..._cuda)"
    parser.add_argument("--output", metavar="NAME", help=files)


def run(arguments):
    """Runs the benchmark on COMM_WORLD; 0 if all went well, 1 if a result was wrong, 2 if it cannot be run so."""
    return on_world("bench", run_on, arguments)


def run_on(comm, arguments):
    """Runs the benchmark on a communicator; the exit status, the same on all ranks."""
    complaint = _complaint(arguments)
    try:
        place = None if complaint else place_of(comm, arguments.device, AWARE[arguments.cuda_aware])
    except Error as problem:
        complaint = str(problem)
    if complaint:
        if comm.rank == 0:
            print(f"bench: {complaint}", file=sys.stderr)
        return 2
    return _Bench(arguments, comm, place).run()


def _complaint(arguments):
    """What is wrong with the arguments; "" if nothing is."""
    if arguments.min < 1 or arguments.seconds <= 0 or arguments.repetitions < 1:
        return "--min, --seconds and --repetitions must be positive"
    if arguments.max is not None and arguments.max < arguments.min:
        return f"--max {arguments.max} is less than --min {arguments.min}"
    if len(set(arguments.schemes)) < len(arguments.schemes):
        return "a scheme is named twice"
    try:
        for text in arguments.schemes:
            gq.Scheme.parse(text)
    except ValueError as problem:
        return str(problem)
    return ""


def sides(least, most):
    """Sides of the matrices: doubled from the least while not over the most."""
    found = [least]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found


def largest_side(room, ranks_here):
    """The largest power of two whose float32 matrix fits BUFFERS times per local rank in `room` bytes; at most 8192."""
    side = LARGEST
    while side > 1 and BUFFERS * 4 * side * side * ranks_here > room:
        side //= 2
    return side


class _Bench:
    """One run of the benchmark on one communicator."""

    def __init__(self, arguments, comm, place):
        from mpi4py import MPI

        self.arguments, self.comm, self.place = arguments, comm, place
        self.output = arguments.output or place.output
        self.checked, self.problems = 0, []
        self.nodes = machine.nodes(comm)
        with machine.ranks_of_node(comm) as local:
            self.ranks_here = comm.allreduce(local.size, op=MPI.MAX)
            self.room = comm.allreduce(place.room(local), op=MPI.MIN)
            self.about_place = place.describe(comm, local)
        self.report = Report(f"{self.output}.jsonl") if comm.rank == 0 else Silent()
        self.baselines, self.how_dense = place.baselines(comm)

    def run(self):
        """All sizes, then the plots; the exit status."""
        description = self._introduce() if self.comm.rank == 0 else None
        todo = sides(self.arguments.min, self._most())
        results = []
        with self.report.progress(len(todo)) as progress:
            for side in todo:
                found = self._size(side, progress)
                results += found
                progress.step()
                if side < todo[-1] and round_seconds(found) > self.arguments.seconds:
                    self._leave_out(side, round_seconds(found))
                    break
        if self.comm.rank == 0:
            self._finish(description, results)
        self.comm.Barrier()  # a rank that left early with a status of 1 would end rank 0 before it has written
        return 1 if self.problems else 0

    def _leave_out(self, side, seconds):
        bound = f"more than --seconds {self.arguments.seconds:g}"
        self.report.say(f"left out: sizes over {side}, since one round of {side} takes {seconds:.3g} s, {bound}")

    def _introduce(self):
        """Writes and says what this runs on; the description."""
        description = machine.describe(
            ranks=self.comm.size,
            nodes=self.nodes,
            link=self.arguments.link or machine.link(self.nodes),
            dense=self.how_dense,
            **machine.describe_mpi(),
            **self.about_place,
        )
        self.report.write("machine", description)
        for name in [name for name in SAID if name in description]:
            self.report.say(f"{name}: {description[name]}")
        return description

    def _most(self):
        """The largest side to measure, said with its reason."""
        fits = largest_side(self.room, self.ranks_here)
        room = size_text(self.room)
        rule = f"{BUFFERS} buffers x {self.ranks_here} ranks of a node in half of {self.place.memory}, {room}"
        if self.arguments.max is None:
            self.report.say(f"largest matrix: {fits} x {fits}, which is what fits up to {LARGEST}: {rule}")
            return max(fits, self.arguments.min)
        if self.arguments.max > fits:
            self.report.say(f"warning: --max {self.arguments.max} is more than the {fits} that fits: {rule}")
        return self.arguments.max

    def _size(self, side, progress):
        """Measures and reports one size; its rows."""
        random = np.random.default_rng([self.arguments.seed, self.comm.rank, side])
        pristine = np.multiply(random.standard_normal((side, side), np.float32), np.float32(SPREAD))
        reference = Reference(self.comm, pristine.reshape(-1))
        check = Check(self.comm, pristine.reshape(-1), reference) if self.arguments.check else None
        budget = self.room / (self.ranks_here * pristine.nbytes)
        parts = groups(self.arguments.schemes, budget, self.arguments.check)
        seconds = self.arguments.seconds / len(parts)
        found = pooled(
            [row for part in parts for row in self._group(part, pristine, reference, check, seconds, progress)]
        )
        self.report.table(sums_table(found))
        if min(len(row["seconds"]) for row in found) < ENOUGH:
            self.report.say(
                f"fewer than {ENOUGH} repetitions of {side}: give more --seconds before quoting these times"
            )
        for row in found:
            self.report.write("sum", row)
        for problem in check.problems if check else ():
            self.report.say(f"WRONG: {problem}")
            self.problems.append(problem)
        return found

    def _group(self, texts, pristine, reference, check, seconds, progress):
        """Rows of schemes that are interleaved with each other and with the dense sums."""
        side, buffers = len(pristine), Buffers(pristine, self.place)
        quantized = [Quantized(text, self.comm, f"matrix {side}", self.place) for text in texts]
        twins = Twins(quantized, self.comm, pristine) if check and self.place.on_gpu else None

        def before(number, sample):
            progress.show(f"{side} x {side}, round {number + 1}: {sample.contender.name}")
            if check:
                check.before(sample.contender)

        def after(number, sample):
            if number != FIRST and not check:
                return
            result = buffers.result().reshape(-1)
            if number == FIRST:
                sample.error = reference.error(result)
            if check:
                check.after(sample.contender, result)
                self.checked += 1
            if twins:
                check.note(sample.contender, twins.problem(sample.contender, result))

        contenders = [*self.baselines, *quantized]
        samples = interleave(contenders, buffers, self.comm, seconds, self.arguments.repetitions, before, after)
        found = rows(samples, self.comm, side)
        for contender in quantized:
            contender.close()
        if twins:
            twins.close()
        return found

    def _finish(self, description, results):
        from gqallreduce.cli import plots

        written = [f"{self.output}.jsonl", *plots.draw_sums(description, results, self.output)]
        self.report.say("written: " + ", ".join(written))
        if self.arguments.check:
            self.report.say(f"checked {self.checked} results: {len(self.problems)} wrong")
