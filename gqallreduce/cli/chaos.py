"""A training that is disturbed as clusters disturb it: `python bench/chaos.py`; it starts its jobs by mpirun itself.

Each training draws its faults from its seed: a rank is killed, stopped for a while or for longer than the timeout, late
by more than the timeout, gives a NaN, has no memory for a tensor, or no room on its disk for its part of a state. After
each fault it is checked that no rank hangs, that survivors have an error with a name within the timeout, that the job
can begin again from the last state on as many ranks as are left (on all again, if that is one), and at the end that the
accuracy is that of undisturbed trainings. With `--netbed` each rank is a host of bench/netbed, and the links of hosts
fail as well: for a second, for good, or so that they carry a hundredth.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from gqallreduce.cli import machine
from gqallreduce.cli.report import Report, read
from gqallreduce.cli.tables import markdown, print_plain

KINDS = ("kill", "stop", "late", "pause", "nan", "memory", "disk")
LINKS = ("link down", "link slow", "link lost")  # for a second; for two, a hundredth of its rate; for good
HARMLESS = ("pause", "link down", "link slow")  # within the timeout: no rank may notice
FATAL = ("kill", "link lost")  # the job begins again without that rank
ENDING = (*FATAL, "stop", "late", "memory")  # the job begins again
STEPS, EVERY, RANKS = 400, 20, 4
TIMEOUT, SHORT, SLACK = 1.0, 0.3, 4.0  # seconds: of calls; of a pause; beyond the timeout until an error is noted
ON_NETBED = 4.0  # the timeout of calls where links fail: TCP doubles its pause before each repetition
SECONDS = {"pause": SHORT, "link down": 1.0, "link slow": 2.0}  # what is not named: the timeout and two more
RECOVERY = {"Open MPI": "--enable-recovery", "MPICH": "-disable-auto-cleanup"}  # a rank that is killed ends no other
HANGS = 60.0  # seconds after which a job is taken for one that hangs
SPREAD = 0.03  # of accuracy, beyond that of the undisturbed trainings


def add_arguments(parser):
    """The options of the benchmark."""
    parser.add_argument("--trainings", type=int, default=10, help="each with another seed (10)")
    parser.add_argument("--faults", type=int, default=21, help="of each training (21)")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"of a training's first job ({RANKS})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a training ({STEPS})")
    parser.add_argument("--kinds", nargs="+", choices=KINDS + LINKS, help="of faults (all that there can be)")
    parser.add_argument("--netbed", action="store_true", help="each rank on a host of bench/netbed; links fail as well")
    name = "writes NAME.jsonl and NAME.md (bench/results/chaos)"
    parser.add_argument("--output", default="bench/results/chaos", metavar="NAME", help=name)
    again = "no training: the table of earlier results, FILE.jsonl, as NAME.md"
    parser.add_argument("--draw", metavar="FILE", help=again)


def run(arguments):
    """Runs all trainings; 0 if each fault was met as it must be, else 1."""
    if arguments.draw:
        _show(read(arguments.draw, "fault")[1], arguments.output)
        return 0
    arguments.kinds = arguments.kinds or (KINDS + LINKS if arguments.netbed else KINDS)
    if problem := unfit(arguments):
        print(f"chaos: {problem}", file=sys.stderr)
        return 2
    report = Report(f"{arguments.output}.jsonl")
    report.write("machine", machine.describe(ranks=arguments.ranks))
    calm, rows, wrong = [], [], []
    with report.progress(2 * arguments.trainings) as progress:
        for seed in range(arguments.trainings):
            progress.show(f"training {seed}, undisturbed")
            calm.append(Training(seed, arguments, []).run()["accuracy"])
            progress.step()
        for seed in range(arguments.trainings):
            progress.show(f"training {seed}")
            training = Training(seed, arguments, faults_of(seed, arguments))
            ended = training.run()
            report.write("training", ended)
            for row in training.rows:
                report.write("fault", row)
            rows += training.rows
            wrong += training.wrong
            if ended["accuracy"] < min(calm) - SPREAD:
                wrong.append(f"training {seed}: accuracy {ended['accuracy']:.3f}, undisturbed at least {min(calm):.3f}")
            progress.step()
    report.write("undisturbed", {"accuracies": calm})
    _show(rows, arguments.output)
    for each in wrong:
        print(f"wrong: {each}")
    print(
        f"{len(rows)} faults in {arguments.trainings} trainings; "
        f"written: {arguments.output}.jsonl, {arguments.output}.md"
    )
    return int(bool(wrong))


def unfit(arguments):
    """What is wrong with the options, or ""."""
    if arguments.trainings < 1 or arguments.faults < 0:
        return f"got {arguments.trainings} trainings with {arguments.faults} faults, expected 1 or more, with 0 or more"
    if arguments.ranks < 2:
        return f"--ranks: got {arguments.ranks}, expected 2 or more: others notice a fault"
    if not arguments.netbed and set(arguments.kinds) & set(LINKS):
        return f"--kinds: got {', '.join(sorted(set(arguments.kinds) & set(LINKS)))} without --netbed, whose links fail"
    disks = sum(arguments.kinds[number % len(arguments.kinds)] == "disk" for number in range(arguments.faults))
    saves = sum(step % EVERY == EVERY - 1 for step in range(2, arguments.steps - 1))
    if disks > saves or arguments.faults > (arguments.steps - 4) // 2:
        return (
            f"--steps: got {arguments.steps}, expected more for {arguments.faults} faults at different steps, "
            f"of which {disks} at one of the {saves} that save a state"
        )
    return ""


def faults_of(seed, arguments):
    """[{number, step, rank, kind, seconds}], no two at one step; those of a disk at steps that save."""
    random, found, steps = np.random.default_rng([seed, 1]), [], set()
    for number in range(arguments.faults):
        kind = arguments.kinds[number % len(arguments.kinds)]
        while True:
            step = int(random.integers(2, arguments.steps - 2))
            step = step // EVERY * EVERY + EVERY - 1 if kind == "disk" else step
            if step not in steps and step < arguments.steps - 1:
                break
        steps.add(step)
        seconds = SECONDS.get(kind, timeout_of(arguments) + 2.0)
        found.append(
            {"number": number, "step": step, "rank": int(random.integers(1 << 16)), "kind": kind} | {"seconds": seconds}
        )
    return sorted(found, key=lambda fault: fault["step"])


def timeout_of(arguments):
    """Of calls, in seconds."""
    return ON_NETBED if arguments.netbed else TIMEOUT


class Training:
    """All jobs of one seed.

    rows, wrong
        a row for each fault; what was not as it must be, as text.
    """

    def __init__(self, seed, arguments, faults):
        self.seed, self.arguments, self.left = seed, arguments, list(faults)
        self.rows, self.wrong, self.jobs = [], [], 0
        self.timeout = timeout_of(arguments)

    def run(self):
        """Jobs, one after the other, until all steps are made: {seed, accuracy, jobs, seconds, steps_lost}."""
        folder, began = Path(tempfile.mkdtemp(prefix="chaos")), time.monotonic()
        try:
            ranks, lost = self.arguments.ranks, 0
            while True:
                events, hung = self._job(folder, ranks)
                self.jobs += 1
                ends = [each for each in events if each["what"] == "ends"]
                self._check(folder, events, hung, ranks)
                if len(ends) == ranks or self.jobs > 3 * self.arguments.faults + 3:
                    break
                reached = max((each["step"] for each in events), default=0)
                latest = folder / "latest"
                lost += reached - (int(latest.read_text()) if latest.exists() else 0)
                killed = sum(each.get("kind") in FATAL for each in events)
                ranks = ranks - killed if ranks - killed > 1 else self.arguments.ranks
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        accuracy = ends[0]["accuracy"] if ends else 0.0
        if len({each["weights"] for each in ends}) > 1:
            self.wrong.append(f"training {self.seed}: ranks end with different models")
        row = {"seed": self.seed, "accuracy": accuracy, "jobs": self.jobs, "steps_lost": lost}
        return row | {"faults": len(self.rows), "seconds": time.monotonic() - began}

    def _job(self, folder, ranks):
        """(events of all its ranks, does it hang?)."""
        job = {"folder": str(folder), "job": self.jobs, "seed": self.seed, "steps": self.arguments.steps}
        job |= {"every": EVERY, "timeout": self.timeout, "faults": self.left}
        path = folder / "job.json"
        path.write_text(json.dumps(job))
        program = [sys.executable, "-m", "gqallreduce.cli.chaos_rank", str(path)]
        if self.arguments.netbed:
            bed = f"bench/netbed --quiet --recovery --hosts {ranks} --rate 1gbit --"
            words = [sys.executable, *bed.split(), *program]
        else:
            words = [machine.launcher(), RECOVERY[vendor()], "-n", str(ranks), *program]
        with open(folder / f"output.{self.jobs}", "w") as output:
            process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            hung = not self._wait(process, folder, ranks)
        return self._events(folder), hung

    def _wait(self, process, folder, ranks):
        """Until the job is over; False if it hangs. A launcher that waits for a host that is cut off does not count."""
        began = over = time.monotonic()
        while time.monotonic() - began < HANGS:
            try:
                process.wait(0.2)
                return True
            except subprocess.TimeoutExpired:
                ended = {each["rank"] for each in self._events(folder) if each["what"] in ("ends", "error")}
                over = over if len(ended) == ranks else time.monotonic()
                if time.monotonic() - over > self.timeout + SLACK:
                    break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return time.monotonic() - began < HANGS

    def _events(self, folder):
        """Of all ranks of the job."""
        found = []
        for each in folder.glob(f"events.{self.jobs}.*.jsonl"):
            found += [json.loads(line) for line in each.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return found

    def _check(self, folder, events, hung, ranks):
        """Every fault that was met in this job, and what its ranks noted of it."""
        met = sorted((each for each in events if each["what"] == "fault"), key=lambda each: each["step"])
        self.left = [each for each in self.left if each["number"] not in {fault["number"] for fault in met}]
        if hung:
            self.wrong.append(
                f"training {self.seed}, job {self.jobs - 1}: hangs; faults {[each['kind'] for each in met]}"
            )
        for fault in met:
            self.rows.append(self._row(fault, events, ranks))
        if not met and not any(each["what"] == "ends" for each in events):
            output = (folder / f"output.{self.jobs - 1}").read_text()[-2000:]
            self.wrong.append(f"training {self.seed}, job {self.jobs - 1}: ended without a fault: {output}")

    def _row(self, fault, events, ranks):
        """What came of one fault: by whom it was noticed, as what, after how long."""
        kind, victim = fault["kind"], fault["rank"]
        follows = ("not saved",) if kind == "disk" else ("error", "skipped")
        after = [each for each in events if each["what"] in follows]
        others = {each["step"] for each in events if each["what"] == "fault"} - {fault["step"]}
        after = [each for each in after if each["step"] - fault["step"] in (0, 1) and each["step"] not in others]
        noted = [each for each in after if each["rank"] != victim]
        row = {"training": self.seed, "job": self.jobs - 1, "fault": kind, "step": fault["step"], "ranks": ranks}
        row |= {"noticed_by": len(noted), "errors": dict(Counter(each["error"] for each in noted))}
        row["seconds"] = max((each["seconds"] for each in noted), default=None)
        row["named"] = any(victim in each.get("named", ()) for each in noted)
        problem = self._problem(kind, noted, ranks, row)
        if problem:
            self.wrong.append(f"training {self.seed}, step {fault['step']}, {kind}: {problem}")
        return row

    def _problem(self, kind, noted, ranks, row):
        if kind in HARMLESS:
            return "an error, where a rank was stopped or cut off for less than the timeout" if noted else ""
        if kind == "kill" and not noted and vendor() == "MPICH":
            row["by_launcher"] = True  # it ends the other ranks now and then, though it is asked not to
            return ""
        if len(noted) < ranks - 1:
            return f"{len(noted)} of {ranks - 1} other ranks noticed"
        if row["seconds"] > self.timeout + SLACK:
            return f"noticed after {row['seconds']:.1f} s"
        if kind in ("kill", "stop", "late", "nan", "link lost") and not row["named"]:
            return "no rank names it"
        return ""


def vendor():
    """Which MPI mpi4py has loaded: "Open MPI" or "MPICH"."""
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False  # this process is no rank
    from mpi4py import MPI

    return MPI.get_vendor()[0]


def _show(rows, output):
    """Prints the table of these faults, and writes it to `output`.md."""
    table = summary(rows)
    print_plain(*table, right=table[0][1:])
    Path(f"{output}.md").write_text(markdown(*table))


def summary(rows):
    """(heads, cells) of the table: a row for each kind of fault."""
    heads = "fault", "injected", "noticed by", "as", "median seconds", "longest", "named", "lost steps"
    by_kind, lost, cells = defaultdict(list), Counter(), []
    for row in rows:
        by_kind[row["fault"]].append(row)
    for training in {row["training"] for row in rows}:
        lost.update(lost_steps([row for row in rows if row["training"] == training]))
    for kind, found in by_kind.items():
        seconds = [row["seconds"] for row in found if row["seconds"] is not None]
        errors = sum((Counter(row["errors"]) for row in found), Counter())
        times = [f"{value:.2f}" for value in (np.median(seconds), max(seconds))] if seconds else ["-", "-"]
        named = f"{sum(row['named'] for row in found)}"
        as_what = ", ".join(sorted(errors)) or "-"
        cells.append([kind, str(len(found)), _noticed_by(found), as_what, *times, named, str(lost[kind])])
    return heads, cells


def lost_steps(rows):
    """kind -> steps that were made in vain, of the faults of one training: those since the last state."""
    lost, saved = Counter(), 0
    for job in sorted({row["job"] for row in rows}):
        met = [row for row in rows if row["job"] == job]
        full = {row["step"] for row in met if row["fault"] == "disk"}
        last = max(met, key=lambda row: (row["step"], row["fault"] in ENDING))
        saved = max({saved, *range(0, last["step"] + 1, EVERY)} - full)
        if last["fault"] in ENDING:
            lost[last["fault"]] += last["step"] - saved
    return lost


def _noticed_by(rows):
    """Of one kind of fault, in words."""
    by_ranks = [row for row in rows if not row.get("by_launcher")]
    if len(by_ranks) < len(rows):
        launcher = f"the launcher ({len(rows) - len(by_ranks)})"
        return f"{_noticed_by(by_ranks)}, {launcher}" if by_ranks else launcher
    if all(row["noticed_by"] == 0 for row in rows):
        return "no rank"
    if all(row["noticed_by"] >= row["ranks"] - 1 for row in rows):
        return "all other ranks"
    return "some ranks"
