"""The command line of the training: options, what is wrong with them, and the order of things."""

import os
import sys
from pathlib import Path

from gqallreduce.cli import machine
from gqallreduce.cli.report import Report, Silent, read
from gqallreduce.cli.training import rules
from gqallreduce.cli.training.data import VARIABLE, load_everywhere
from gqallreduce.cli.training.experiment import Experiment, Setting, weight_names
from gqallreduce.cli.training.gradients import Dump
from gqallreduce.cli.training.optimizers import OPTIMIZERS
from gqallreduce.cli.training.sums import baselines
from gqallreduce.cli.world import on_world
from gqallreduce.quantities import count

SCHEMES = ("dense", "onebit", "onebit/ef", "adaptive(pi=64)", "adaptive(pi=64)/ef", "qsgd(bits=4)", "qsgd(bits=4)/ef")
RULES = ("*.bias=dense",)
SAID = (
    "processor",
    "cores",
    "ranks",
    "nodes",
    "link",
    "mpi",
    "simd",
    "commit",
    "data",
    "widths",
    "batch",
    "epochs",
    "flush",
    "rules",
)


def add_arguments(parser):
    """The options of `bench/train_mlp.py`."""
    _add_network(parser)
    _add_runs(parser)
    _add_results(parser)


def _add_network(parser):
    data = f"folder of MNIST files (the one that {VARIABLE} names; without either, scikit-learn's digits)"
    parser.add_argument("--data", metavar="FOLDER", help=data)
    widths = "widths of the hidden layers (1024 1024 1024; the poster's network is 4096 4096 4096)"
    parser.add_argument("--hidden", nargs="*", type=count, default=[1024] * 3, metavar="WIDTH", help=widths)
    parser.add_argument("--batch", type=count, default=256, help="mini-batch over all ranks (256)")
    parser.add_argument("--epochs", type=count, default=10, help="epochs of each run (10)")
    multiple = "leading dimensions of the weights are multiples of this (16)"
    parser.add_argument("--align", type=count, default=16, metavar="ROWS", help=multiple)


def _add_runs(parser):
    runs = "one run each: a scheme, `dense`, `dense(ring)`, or rules `PATTERN=SCHEME; ...`; RUN@OPTIMIZER names its own"
    runs += f" ({' '.join(SCHEMES)})"
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, metavar="RUN", help=runs)
    rule = "PATTERN=SCHEME for weights of all runs, before their own; may be repeated; the first that matches wins"
    parser.add_argument("--rule", action="append", metavar="RULE", help=f"{rule} ({' '.join(RULES)})")
    known = tuple(OPTIMIZERS)
    parser.add_argument("--optimizers", nargs="+", choices=known, default=["adam"], help="for every run (adam)")
    defaults = " ".join(f"{name}={each.rate:g}" for name, each in OPTIMIZERS.items())
    rates = f"learning rates ({defaults})"
    parser.add_argument("--rates", nargs="+", default=(), metavar="NAME=RATE", help=rates)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED", help="of each run (0 1 2)")
    flush = "at the end of an epoch sum the residuals exactly and apply the sum as one more step of the optimizer"
    parser.add_argument("--flush", action="store_true", help=flush)
    bucket = "at most so many bytes of gradients are summed by one call, as gq.Reducer has it (4 MiB)"
    parser.add_argument("--bucket", default="4 MiB", metavar="SIZE", help=bucket)
    overlap = "start sums during the backward pass: never (default), always, or in every second step, to compare"
    parser.add_argument("--overlap", choices=("never", "always", "alternate"), default="never", help=overlap)


def _add_results(parser):
    steps = "evaluate after these steps, beside the end of every epoch (25 50 100 200)"
    parser.add_argument("--loss-at", nargs="*", type=count, default=[25, 50, 100, 200], metavar="STEP", help=steps)
    parser.add_argument("--evaluate-every", type=int, default=0, metavar="STEPS", help="evaluate every so many steps")
    target = "accuracy to which steps and seconds are reported (0.95)"
    parser.add_argument("--target", type=float, default=0.95, metavar="SHARE", help=target)
    log = "statistics of every weight's sum every so many steps (50; 0 for never)"
    parser.add_argument("--log-every", type=int, default=50, metavar="STEPS", help=log)
    norms = "with the norm of the residual every so many of these steps (0: never); it takes a pass over the residual"
    parser.add_argument("--norm-every", type=int, default=0, metavar="STEPS", help=norms)
    errors = "compare the sums with exact ones every so many steps, and plot their errors (0: never)"
    parser.add_argument("--error-every", type=int, default=0, metavar="STEPS", help=errors)
    dump = "write every rank's gradients at the steps of --loss-at, of the first run and seed, before they are summed"
    parser.add_argument("--dump-gradients", metavar="FOLDER", help=dump)
    parser.add_argument("--link", help="what to call the link in the results")
    again = "train nothing: table and plots of these files together"
    parser.add_argument("--draw", nargs="+", metavar="FILE", help=again)
    files = "writes NAME.jsonl, NAME.md, NAME.png and NAME.svg (bench/results/train_mlp)"
    parser.add_argument("--output", default="bench/results/train_mlp", metavar="NAME", help=files)


def run(arguments):
    """Trains on COMM_WORLD; 0 if all went well, 1 after an error, 2 for wrong arguments, the same on all ranks."""
    if arguments.draw and machine.launched_rank() > 0:
        return 0
    if arguments.draw:
        return _draw_again(arguments)
    return on_world("train_mlp", run_on, arguments)


def run_on(comm, arguments):
    """Trains on a communicator; the exit status."""
    try:
        setting = _setting(arguments)
        rates = dict(map(rules.parse_rate, arguments.rates))
        names = weight_names([0, *setting.hidden, 0])
        first = RULES if arguments.rule is None else arguments.rule
        runs = rules.plan(arguments.schemes, first, arguments.optimizers, rates, names)
        data = load_everywhere(comm, arguments.data)
        if setting.batch > len(data.training):
            raise ValueError(f"--batch {setting.batch} is more than the {len(data.training)} images to train on")
        found = baselines(comm, {scheme for each in runs for scheme in each.assignment.values()})
    except ValueError as problem:
        if comm.rank == 0:
            print(f"train_mlp: {problem}", file=sys.stderr)
        return 2
    _train(comm, arguments, setting, runs, data, found)
    return 0


def _setting(arguments):
    """The Setting that the arguments ask for; ValueError if it makes no sense."""
    if min(arguments.evaluate_every, arguments.log_every, arguments.norm_every, arguments.error_every) < 0:
        named = "--evaluate-every, --log-every, --norm-every and --error-every"
        raise ValueError(f"{named}: expected numbers of steps, or 0 for never")
    if not 0 < arguments.target <= 1:
        raise ValueError(f"--target {arguments.target:g}: expected a share of the test images as 0.95")
    for name in ("seeds", "optimizers"):
        if len(set(getattr(arguments, name))) < len(getattr(arguments, name)):
            raise ValueError(f"--{name}: expected each once")
    if min(arguments.seeds) < 0:
        raise ValueError(f"--seeds: got {min(arguments.seeds)}, expected numbers from 0 on")
    return Setting(
        hidden=tuple(arguments.hidden),
        batch=arguments.batch,
        epochs=arguments.epochs,
        flush=arguments.flush,
        overlap=arguments.overlap,
        bucket=arguments.bucket,
        align=arguments.align,
        loss_at=tuple(sorted(set(arguments.loss_at))),
        evaluate_every=arguments.evaluate_every,
        target=arguments.target,
        log_every=arguments.log_every,
        norm_every=arguments.norm_every,
        error_every=arguments.error_every,
    )


def _train(comm, arguments, setting, runs, data, found):
    """All runs, then the table and the plots."""
    report = Report(f"{arguments.output}.jsonl") if comm.rank == 0 else Silent()
    nodes = machine.nodes(comm)
    description = {}
    if comm.rank == 0:
        description = _introduce(comm, arguments, setting, data, report, nodes)
    experiment = Experiment(comm, data, setting, report, found)
    dump = None
    if arguments.dump_gradients:
        first = {"scheme": runs[0].text, "optimizer": runs[0].optimizer, "seed": arguments.seeds[0]}
        steps = [step for step in setting.loss_at if step <= experiment.steps]
        dump = Dump(arguments.dump_gradients, steps, comm, {**first, **description})
    rows, todo = [], [(each, seed) for seed in arguments.seeds for each in runs]
    with report.progress(len(todo)) as progress:
        for each, seed in todo:
            rows.append(experiment.train(each, seed, progress, dump))
            dump = None
            progress.step()
    if comm.rank == 0:
        _finish(report, arguments.output, setting.loss_at)
    comm.Barrier()  # a rank that left early might end rank 0 before it has written


def _introduce(comm, arguments, setting, data, report, nodes):
    """Writes and says what this runs on and with; the description."""
    description = machine.describe(
        ranks=comm.size,
        nodes=nodes,
        link=arguments.link or machine.link(nodes),
        **machine.describe_mpi(),
        blas_threads=os.environ.get("OPENBLAS_NUM_THREADS", "its default"),
        data=f"{data.name}: {len(data.training)} to train on, {len(data.test)} to test",
        widths=setting.widths(data),
        batch=setting.batch,
        epochs=setting.epochs,
        flush=setting.flush,
        rules=list(RULES if arguments.rule is None else arguments.rule),
        loss_at=list(setting.loss_at),
    )
    report.write("machine", description)
    for name in SAID:
        report.say(f"{name}: {description[name]}")
    return description


def _finish(report, name, loss_at, files=None):
    """The table and the plots of the files' rows, by default of this training's own."""
    from gqallreduce.cli.training import curves, summary

    files = files or [f"{name}.jsonl"]
    machines = [read(file)[0] for file in files]
    rows = [row for file in files for row in read(file, "run")[1]]
    evaluations = [row for file in files for row in read(file, "evaluation")[1]]
    loss_at = [step for step in loss_at if any(str(step) in row["loss_at"] for row in rows)]
    report.table(summary.table(rows, loss_at))
    Path(f"{name}.md").write_text(summary.markdown(rows, loss_at))
    errors = [row for file in files for row in read(file, "error")[1]]
    written = [f"{name}.md", *(curves.draw(machines[0], evaluations, name) if evaluations else [])]
    written += curves.draw_errors(machines[0], errors, f"{name}_error") if errors else []
    report.say("written: " + ", ".join(written))


def _draw_again(arguments):
    """Table and plots of files that are there; the exit status."""
    try:
        loss_at = read(arguments.draw[0])[0]["loss_at"]
        _finish(Report(), arguments.output, loss_at, arguments.draw)
    except (OSError, KeyError, ValueError) as problem:
        print(f"train_mlp: {arguments.draw}: no results of a training: {problem}", file=sys.stderr)
        return 2
    return 0
