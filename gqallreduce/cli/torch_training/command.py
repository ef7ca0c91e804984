"""The command line: options, what is wrong with them, and the order of things."""

import sys

from gqallreduce.cli import machine
from gqallreduce.cli.needs import lacking
from gqallreduce.cli.places import place_of
from gqallreduce.cli.report import Report, Silent, read
from gqallreduce.cli.world import on_world
from gqallreduce.errors import Error
from gqallreduce.quantities import count

SCHEMES = ("dense", "qsgd(bits=4)", "onebit/ef", "adaptive(pi=64)/ef")
OUTER = "nesterov", "mean"
HOOKS = "fp32", "fp16", "bf16", "powersgd"
RATES = {
    "adamw": 1e-3, "adamw_warmup": 1e-3, "onebit_adam": 1e-3, "zero_one_adam": 1e-3, "sgd": 0.1, "sgd_warmup": 0.1,
    "sgd_summed": 0.1, "sgd_summed_warmup": 0.1, "sgd_corrected": 0.1, "adagrad": 0.01,
}  # fmt: skip
OPTIMIZERS = ("adamw", "onebit_adam", "sgd", "sgd_summed_warmup")
RULES = "*norm*=raw"
FILES = {"host": "bench/results/train_torch", "cuda": "bench/results/train_torch_cuda"}


def add_arguments(parser):
    """The options of `bench/train_torch.py`."""
    add = parser.add_argument
    add("--model", choices=["char"], default="char", help="a transformer that predicts characters (char)")
    add("--device", choices=("host", "cuda"), default="host", help="host; or cuda, a GPU per rank, in turn (host)")
    add("--layers", type=count, default=4, help="blocks (4)")
    add("--width", type=count, default=256, help="width of the model, a multiple of 32 (256)")
    add("--length", type=count, default=64, help="characters in a sequence (64)")
    add("--batch", type=count, default=16, help="sequences in a mini-batch of all ranks, a multiple of these (16)")
    add("--steps", type=count, default=500, help="steps of each run (500)")
    runs = f"one run each: a scheme, or rules `PATTERN=SCHEME; ...` ({' '.join(SCHEMES)})"
    add("--schemes", nargs="+", default=SCHEMES, metavar="RUN", help=runs)
    add("--rules", default=RULES, help=f"before those of each run, for what is summed exactly ({RULES})")
    each = f"each with each scheme, of {' '.join(RATES)} ({' '.join(OPTIMIZERS)})"
    add("--optimizers", nargs="+", default=OPTIMIZERS, metavar="NAME", help=each)
    hooks = "also train by PyTorch's DistributedDataParallel over gloo, with these communication hooks"
    add("--ddp", nargs="+", default=(), choices=HOOKS, metavar="HOOK", help=f"{hooks}: {' '.join(HOOKS)}")
    inner = "also train each scheme by DiLoCo, or local SGD: changes are summed every so many steps"
    add("--every", nargs="+", type=count, default=(), metavar="STEPS", help=inner)
    add("--diloco-only", action="store_true", help="of the schemes, train by DiLoCo alone")
    outer = (
        "what is done with the sums: DiLoCo's optimizer (nesterov), or their mean is the new model, local SGD (mean)"
    )
    add("--outer", choices=OUTER, default=OUTER[0], help=outer)
    add("--fragments", type=count, default=1, help="of --every: parts of the model whose sums follow each other (1)")
    delay = "of --every: steps between the start of a part's sum and its use, during which it travels (0)"
    add("--delay", type=int, default=0, metavar="STEPS", help=delay)
    add("--target", type=float, metavar="LOSS", help="time to this loss (1 %% above the first run's last one)")
    rates = f"learning rates ({' '.join(f'{name}={rate:g}' for name, rate in RATES.items())})"
    add("--rates", nargs="+", default=(), metavar="NAME=RATE", help=rates)
    add("--warmup", type=count, default=60, help="steps of the warm-up of *_warmup and onebit_adam (60)")
    warmup = "of optimizers named *_warmup, rules for the sums of these steps, a run for each (dense)"
    add("--warmup-rules", nargs="+", default=("dense",), metavar="RULES", help=warmup)
    add("--clip", type=float, default=1.0, help="largest norm of a rank's gradients; 0: no clipping (1)")
    add("--clip-after", action="store_true", help="clip the sums, in place of what each rank gives")
    flush = "every so many steps, residuals are summed exactly and applied as one more step (0: never)"
    add("--flush", type=int, default=0, metavar="STEPS", help=flush)
    overlap = "sums begin during the backward pass: always (default), never, or in every second step, to compare"
    add("--overlap", choices=("always", "never", "alternate"), default="always", help=overlap)
    add("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="of first weights and mini-batches (0)")
    add("--evaluate-every", type=count, default=100, metavar="STEPS", help="validate every so many steps (100)")
    add("--validation", type=count, default=512, help="sequences to validate on (512)")
    add("--link", help="what to call the link in the results")
    add("--draw", nargs="+", metavar="FILE", help="train nothing: table and plots of these files together")
    files = "writes NAME.jsonl, NAME.md, NAME.png and NAME.svg (bench/results/train_torch; cuda: ..._cuda)"
    add("--output", metavar="NAME", help=files)


def run(arguments):
    """Trains on COMM_WORLD; 0 if all went well, 1 after an error, 2 for wrong arguments, the same on all ranks."""
    if arguments.draw:
        return 0 if machine.launched_rank() > 0 else _draw_again(arguments)
    return on_world("train_torch", run_on, arguments)


def run_on(comm, arguments):
    """Trains on a communicator; the exit status."""
    try:
        if lack := lacking(["torch"], "torch"):
            raise ValueError(lack)
        runs, setting = _runs(arguments), _setting(arguments)
        if setting.batch % comm.size:
            raise ValueError(f"--batch {setting.batch}: expected a multiple of the {comm.size} ranks")
        place = place_of(comm, arguments.device)
    except (ValueError, Error) as problem:
        if comm.rank == 0:
            print(f"train_torch: {problem}", file=sys.stderr)
        return 2
    _train(comm, arguments, runs, setting, place)
    return 0


def _runs(arguments):
    """All Runs, seed by seed; ValueError says what is wrong."""
    from gqallreduce.cli.torch_training.experiment import Run
    from gqallreduce.cli.torch_training.recipes import RECIPES
    from gqallreduce.models import rules

    rates = {}
    for text in arguments.rates:
        name, _, rate = text.partition("=")
        try:
            rates[name] = float(rate)
            if not 0 < rates[name] < float("inf"):
                raise ValueError
        except ValueError:
            raise ValueError(f"--rates {text}: expected NAME=RATE as adamw=0.001") from None
    for name in [*arguments.optimizers, *rates]:
        if name not in RATES:
            raise ValueError(f"no optimizer {name!r}; known: {', '.join(RATES)}")
    asked = [("--schemes", text) for text in arguments.schemes]
    asked += [("--warmup-rules", text) for text in arguments.warmup_rules]
    for option, text in [*asked, ("--rules", arguments.rules)] if arguments.rules else asked:
        try:
            rules.parse(text)
        except ValueError as problem:
            raise ValueError(f"{option} {text!r}: {problem}") from None
    _require_fitting_steps(arguments)
    if tuple(arguments.warmup_rules) != ("dense",) and not any(RECIPES[name].warms_up for name in arguments.optimizers):
        raise ValueError(f"--warmup-rules: expected an optimizer named *_warmup, got {' '.join(arguments.optimizers)}")
    found = []
    for seed in arguments.seeds:
        for name in arguments.optimizers:
            usual = name, rates.get(name, RATES[name]), seed
            found += [Run("", *usual, hook=hook) for hook in arguments.ddp if RECIPES[name].plain == name]
            if not arguments.diloco_only:
                overlaps = arguments.overlap != "never"
                warmups = arguments.warmup_rules if RECIPES[name].warms_up else (None,)
                for each in warmups:
                    more = {"overlaps": overlaps, "warmup_rules": each}
                    found += [Run(scheme, *usual, **more) for scheme in arguments.schemes]
            if RECIPES[name].plain == name:
                parts = {"outer": arguments.outer, "fragments": arguments.fragments, "delay": arguments.delay}
                found += [
                    Run(scheme, *usual, every=each, **parts) for each in arguments.every for scheme in arguments.schemes
                ]
    if len(set(found)) < len(found):
        raise ValueError("a run is asked for twice, expected each of --schemes, --ddp, --every and --seeds once")
    if not found:
        raise ValueError("nothing to train: --diloco-only wants --every, --ddp and --every want adamw, sgd or adagrad")
    return found


def _require_fitting_steps(arguments):
    """ValueError for --flush where there is nothing to flush, and for runs that would end between two sums."""
    if arguments.flush and (arguments.ddp or arguments.every):
        raise ValueError("--flush: expected no --ddp and no --every, which keep no residuals of gradients")
    if not arguments.every and (arguments.fragments > 1 or arguments.delay):
        raise ValueError("--fragments, --delay: expected --every, whose sums they are of")
    for each in arguments.every:
        if not 0 <= arguments.delay < each:
            raise ValueError(f"--delay {arguments.delay}: expected 0 or more steps, fewer than --every {each}")
        if arguments.steps % each:
            steps = arguments.steps
            raise ValueError(f"--every {each}: expected a divisor of --steps {steps}, so that a run ends with a sum")


def _setting(arguments):
    from gqallreduce.cli.torch_training.experiment import Setting
    from gqallreduce.cli.torch_training.transformer import HEAD

    if arguments.width % HEAD:
        raise ValueError(f"--width {arguments.width}: expected a multiple of {HEAD}")
    if arguments.clip < 0 or arguments.flush < 0:
        raise ValueError("--clip, --flush: expected 0 or more")
    names = Setting.__dataclass_fields__
    return Setting(**{name: getattr(arguments, name) for name in names})


def _train(comm, arguments, runs, setting, place):
    """All runs at a place (places.py), then the table and the plots."""
    from gqallreduce.cli.torch_training.experiment import Experiment
    from gqallreduce.cli.torch_training.text import Text

    text, output = Text(), _output(arguments)
    report = Report(f"{output}.jsonl") if comm.rank == 0 else Silent()
    experiment = Experiment(comm, text, setting, report, place.torch_device)
    with machine.ranks_of_node(comm) as local:
        more = place.describe(comm, local)
    about = machine.describe_job(comm, arguments.link, data=text.name, **vars(setting), **more)
    report.write("machine", about)
    for name in ("processor", "cores", "ranks", "link", "mpi", "commit", *vars(setting), "data", *more):
        report.say(f"{name}: {about[name]}")
    with report.progress(len(runs)) as progress:
        for each in runs:
            experiment.train(each, progress)
            progress.step()
    if comm.rank == 0:
        _finish(report, output, [f"{output}.jsonl"], arguments.target)
    comm.Barrier()  # a rank that left early might end rank 0 before it has written


def _output(arguments):
    """The name of the files, without their endings."""
    return arguments.output or FILES[arguments.device]


def _finish(report, name, files, target):
    """The table and the plots of the files' rows."""
    from gqallreduce.cli.torch_training import summary

    found = [read(file) for file in files]
    rows = [row for file in files for row in read(file, "run")[1]]
    evaluations = [row for file in files for row in read(file, "evaluation")[1]]
    if not rows:
        raise ValueError("no run came to its end")
    seen = set()
    for run in ((row["scheme"], row["optimizer"], row["seed"]) for row in rows):
        if run in seen:
            raise ValueError("two runs of {}, {}, seed {}: draw their files one by one".format(*run))
        seen.add(run)
    written = summary.show(report, found[0][0], rows, evaluations, name, target)
    report.say("written: " + ", ".join(written))


def _draw_again(arguments):
    """Table and plots of files that are there; the exit status."""
    try:
        _finish(Report(), _output(arguments), arguments.draw, arguments.target)
    except (OSError, KeyError, ValueError, IndexError) as problem:
        print(f"train_torch: {arguments.draw}: no results of a training: {problem}", file=sys.stderr)
        return 2
    return 0
