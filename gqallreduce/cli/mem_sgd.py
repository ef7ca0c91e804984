"""Logistic regression by SGD with sparse and quantized steps, with and without memory: the experiments of Mem-SGD.

In a step each rank takes one sample, multiplies its gradient by the learning rate, and sums that with the others'; so
with /ef what was not sent waits, in units of the weights. Losses are of the weighted mean of the iterates, less the
least there is.

Source: Stich, Cordonnier and Jaggi, Sparsified SGD with memory, NeurIPS 2018, section 4; differs: synthetic data of
their shapes, several ranks that wait for each other, bytes as they travel, headers included, and QSGD at the rates of
the other runs (the paper's comparison with QSGD has gamma0 / (1 + gamma0 lambda t)).

The data `sorted` are for EF21, whose theory is of gradients of all samples: a rank's gradients are those of all of its
own, rates are constant, and losses those of the last iterate.
"""

from time import perf_counter
from typing import NamedTuple

import numpy as np

import gqallreduce as gq
from gqallreduce.cli import machine
from gqallreduce.cli.logistic import DATA, load
from gqallreduce.cli.plots import figure, look_of, save, ticks
from gqallreduce.cli.report import Report, Silent
from gqallreduce.cli.tables import results

EVALUATIONS = 24
LARGEST = 1e3  # a loss above it has diverged
PAPER = ("dense", "sparse", "digits")


class Run(NamedTuple):
    """scheme, and the learning rate: 2 / (lambda (t + delay)) in step t.

    ef21
        differences of gradients are summed, as docs/optimizers.md says, and the rate multiplies their sums.
    constant
        the learning rate of all steps; 0: it follows from delay.
    """

    scheme: str
    delay: float = 0
    ef21: bool = False
    constant: float = 0

    @property
    def name(self):
        return f"{self.scheme} as EF21" if self.ef21 else self.scheme

    def rate(self, t: int, samples: int) -> float:
        return self.constant or 2 * samples / (t + self.delay)

    def share(self, t: int) -> float:
        """Of the mean of the iterates, that of the last."""
        return 1.0 if self.constant else _share(t, self.delay)


def runs_of(data):
    """What is compared: k of the data's d values.

    The delay is d / k, ten times that for sparse data, as in the paper's runs with memory. Plain SGD and QSGD have the
    same delay, so that all runs but those without a delay and with k = 0.5 have the same rates.
    """
    d, k, times = data.features.shape[1], data.k, data.delay
    if data.whole:
        return _constant_rates(f"topk(k={k}, sums=union)/ef")
    usual = times * d / k
    return [
        Run("raw", usual),
        Run(f"topk(k={k}, sums=union)/ef", usual),
        Run(f"topk(k={k}, sums=union)/ef", 1),
        Run(f"topk(k={k}, sums=union)", usual),
        Run(f"topk(k={k}, sums=union)/ef", usual, ef21=True),
        Run(f"randk(k={k})/ef", usual),
        Run(f"randk(k={k}, shared=False)/ef", usual),
        Run(f"randk(k={k})", usual),
        Run("randk(k=0.5)/ef", times * d / 0.5),
        *(Run(f"qsgd(bits={bits})", usual) for bits in (8, 4, 2)),
    ]


def _constant_rates(sparse):
    """Exact sums, feedback and EF21 at a rate where they are alike and at one where they are not."""
    kinds = ("raw", False), (sparse, False), (sparse, True)
    return [Run(scheme, ef21=ef21, constant=rate) for rate in (0.5, 4.0) for scheme, ef21 in kinds]


def add_arguments(parser):
    """The options of bench/mem_sgd.py."""
    parser.add_argument("--data", nargs="+", choices=DATA, default=PAPER, help="(all but sorted)")
    epochs = "of all ranks together (3; sparse 1, digits 10, sorted 1000)"
    parser.add_argument("--epochs", type=float, default=0, help=epochs)
    parser.add_argument("--seed", type=int, default=0, help="of the order of samples (0)")
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/mem_sgd)"
    parser.add_argument("--output", default="bench/results/mem_sgd", metavar="NAME", help=files)


def run(arguments, comm):
    """Trains, prints and writes; 0 if all went well."""
    report = Report(f"{arguments.output}.jsonl") if comm.rank == 0 else Silent()
    description = machine.describe(ranks=comm.size, **machine.describe_mpi())
    report.write("machine", description)
    rows = []
    for name in arguments.data:
        data = load(name)
        epochs = arguments.epochs or data.epochs
        least = comm.bcast(data.least() if comm.rank == 0 else None)
        runs = runs_of(data)
        with report.progress(len(runs)) as progress:
            for each in runs:
                progress.show(f"{name}, {each.name}")
                row = train(data, each, comm, max(EVALUATIONS, data.steps(epochs, comm.size)), arguments.seed)
                rows.append({"data": name, "least": least, **row})
                report.write("run", rows[-1])
                progress.step()
    report.table(table(rows))
    if comm.rank == 0:
        report.say("written: " + ", ".join([f"{arguments.output}.jsonl", *draw(description, rows, arguments.output)]))
    return 0


def train(data, chosen, comm, steps, seed):
    """One run: its losses, on rank 0, and the bytes that a rank has sent, at some iterations."""
    draws = np.random.default_rng([seed, comm.rank])
    x = np.random.default_rng(seed).normal(0, 0.01, data.features.shape[1]).astype(np.float32)
    mean, step, sent = np.zeros(x.size), np.empty_like(x), 0
    before, estimate = np.zeros_like(x), np.zeros_like(x)  # for EF21
    marks, losses, bits, began = _marks(steps), [], [], perf_counter()
    with gq.Allreduce(f"direct/{chosen.scheme}", comm=comm, average=True, seed=seed, verify=0) as allreduce:
        for t in range(steps):
            if data.whole:
                data.gradient_of_part(x, comm.rank, comm.size, step)
            else:
                data.gradient(x, int(draws.integers(len(data))), step)
            rate = chosen.rate(t, len(data))
            if chosen.ef21:
                before, step = step, step - before
            else:
                step *= rate
            try:
                allreduce(step, key="x")
            except gq.NonFiniteError:
                break
            sent += allreduce.stats.last.bytes_sent
            if chosen.ef21:
                estimate += step
                np.multiply(estimate, rate, out=step)
            x -= step
            mean += chosen.share(t) * (x - mean)
            if t + 1 in marks:
                loss = comm.bcast(data.loss(mean) if comm.rank == 0 else None)
                losses.append(loss)
                bits.append(8 * sent)
                if not loss < LARGEST:
                    break
    return {
        "scheme": chosen.name, "delay": chosen.delay, "rate": chosen.constant,
        "steps": sorted(marks)[: len(losses)], "loss": losses, "bits": bits,
        "diverged": len(losses) < len(marks), "seconds": perf_counter() - began,
    }  # fmt: skip


def _marks(steps):
    """Iterations after which the loss is evaluated, closer together at the beginning."""
    return {max(1, round(each)) for each in np.geomspace(max(1, steps / 200), steps, EVALUATIONS)}


def _share(t, a):
    """Of the mean with weights (a + t)^2, the share of the last iterate."""
    return 6 * (t + a) ** 2 / ((1 + t) * (6 * a * a + t + 6 * a * t + 2 * t * t))


def table(rows):
    """A row for each run."""
    columns = "data", "scheme", "delay", "a tenth of the way", "at the end", "bits per step", "seconds"
    return results("Excess loss", columns, lines(rows), left=("data", "scheme"))


def lines(rows):
    """[data, scheme, delay or rate, excess loss after a tenth of the steps and at the end, bits per step, seconds]."""
    return [
        [
            row["data"],
            row["scheme"],
            _rate(row),
            *(_excess(row, place) for place in (_tenth(row), -1)),
            f"{row['bits'][-1] / row['steps'][-1]:.0f}" if row["bits"] else "-",
            f"{row['seconds']:.3g}",
        ]
        for row in rows
    ]


def _rate(row):
    return f"rate {row['rate']:g}" if row.get("rate") else f"{row['delay']:g}"


def _tenth(row):
    """Which evaluation comes after a tenth of the steps."""
    return int(np.searchsorted(row["steps"], row["steps"][-1] / 10)) if row["steps"] else 0


def _excess(row, place):
    if row["diverged"]:
        return "diverged"
    return f"{row['loss'][place] - row['least']:.2e}"


def draw(description, rows, name):
    """Excess loss against iterations and bits into name.png and name.svg; returns their paths."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    drawing, axes = figure(2, len(names))
    for line, data in enumerate(names):
        for number, row in enumerate(each for each in rows if each["data"] == data):
            label = f"{row['scheme']}{_unlike(row)}".replace(f"k={_k(row)}", "k=k")
            excess = np.array(row["loss"]) - row["least"]
            for panel, across in zip(axes[2 * line : 2 * line + 2], ("steps", "bits"), strict=True):
                panel.plot(row[across], excess, label=label if across == "steps" else None, **look_of(number))
        for panel, across in zip(axes[2 * line : 2 * line + 2], ("iterations", "bits sent by a rank"), strict=True):
            panel.set(title=data, yscale="log", xlabel=across, ylabel="loss above the least")
            panel.set_ylim(top=10)
            if across == "iterations" or any(row["bits"][-1:] != [0] for row in rows):  # a rank alone sends nothing
                panel.set_xscale("log")
        ticks(axes[2 * line].xaxis)
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return save(drawing, "Logistic regression with sparse steps", description, name)


def _unlike(row):
    """What its rate has that others of the same scheme have not."""
    if row.get("rate"):
        return f", {_rate(row)}"
    return ", no delay" if row["delay"] == 1 else ""


def _k(row):
    """The k of a scheme as it is written, or what no scheme has."""
    k = row["scheme"].partition("(k=")[2]
    k = k.split(",")[0].split(")")[0]
    return k if k.isdecimal() else "none"
