"""All runs of one call: every scheme, optimizer and seed from the same start, on the same mini-batches.

A seed fixes the first weights and the order of the samples; the schemes of a seed follow each other, so that each is
trained at several times of the day. A run that diverges is reported as such, and the others go on.
"""

from dataclasses import dataclass

import numpy as np

from gqallreduce.cli.training.data import Batches
from gqallreduce.cli.training.evaluation import Diverged, Evaluation, replicas_digest
from gqallreduce.cli.training.network import Network
from gqallreduce.cli.training.optimizers import OPTIMIZERS
from gqallreduce.cli.training.sum_errors import SumErrors
from gqallreduce.cli.training.sums import Sums, ring_bytes
from gqallreduce.cli.training.trainer import Trainer
from gqallreduce.errors import NonFiniteError

DIGITS = 4  # significant, of what is logged per weight


@dataclass(frozen=True)
class Setting:
    """What all runs have in common; steps are counted from 1."""

    hidden: tuple
    batch: int
    epochs: int
    flush: bool
    overlap: str
    bucket: str
    align: int
    loss_at: tuple
    evaluate_every: int
    target: float
    log_every: int
    norm_every: int
    error_every: int

    def widths(self, data):
        """Of all layers, from the pixels to the classes."""
        return [data.pixels, *self.hidden, data.classes]


def weight_names(widths):
    """The names of the weights of a network of these widths."""
    return [f"fc{number}.{kind}" for number in range(1, len(widths)) for kind in ("weight", "bias")]


class Experiment:
    """Trains by one Run after the other on the communicator; collective."""

    def __init__(self, comm, data, setting, report, baselines):
        self._comm, self._setting, self._report, self._baselines = comm, setting, report, baselines
        self._batches = Batches(data.training, setting.batch, comm.rank, comm.size)
        self._network = Network(setting.widths(data), self._batches.most, setting.align)
        self._evaluate = Evaluation(comm, self._network, data.test)
        self._errors = SumErrors(comm, setting.error_every)

    @property
    def steps(self):
        """Of one run."""
        return self._setting.epochs * self._batches.steps

    def train(self, run, seed, progress, dump=None):
        """One run; its row, the same on every rank."""
        self._start(seed)
        given = self._network.weights, run.assignment, self._comm, seed, self._baselines, self._setting.bucket
        with Sums(*given) as sums, np.errstate(all="ignore"):
            optimizer = OPTIMIZERS[run.optimizer](run.rate)
            trainer = Trainer(self._network, optimizer, sums, self.steps, self._setting.overlap)
            log = _Log(self._report, self._setting, {"scheme": run.text, "optimizer": run.optimizer, "seed": seed})
            diverged = None
            try:
                self._epochs(trainer, seed, log, progress, dump)
            except (NonFiniteError, Diverged):
                diverged = trainer.done
            row = self._row(run, trainer, log, diverged)
        self._report.write("run", row)
        return row

    def _start(self, seed):
        """All replicas begin with rank 0's weights, as LBANN does."""
        if self._comm.rank == 0:
            self._network.draw(seed)
        for weight in self._network.weights:
            self._comm.Bcast(weight.value_memory)

    def _epochs(self, trainer, seed, log, progress, dump):
        for epoch in range(self._setting.epochs):
            progress.show(f"{log.who['scheme']}, {log.who['optimizer']}, seed {seed}, epoch {epoch + 1}")
            for number, batch in enumerate(self._batches.epoch(seed, epoch), start=1):
                step = trainer.done + 1
                trainer.step(*batch, look=self._look(step, log, dump))
                log.sums(trainer)
                if number < self._batches.steps and self._is_mark(step):
                    log.evaluation(*self._evaluate(trainer, log.evaluated), epoch + number / self._batches.steps)
            if self._setting.flush:
                trainer.flush()
            log.digest = replicas_digest(self._comm, self._network.weights)
            log.evaluation(*self._evaluate(trainer, log.evaluated), epoch + 1)

    def _look(self, step, log, dump):
        """What looks at the gradients of a step, or None."""
        dumped, compared = dump is not None and step in dump.steps, self._errors.is_due(step)
        if not dumped and not compared:
            return None

        def look(weights):
            if dumped:
                dump.write(step, weights)
            after = self._errors.before(weights) if compared else None
            return after and (lambda: log.error(step, after()))

        return look

    def _is_mark(self, step):
        every = self._setting.evaluate_every
        return step in self._setting.loss_at or (every > 0 and step % every == 0)

    def _row(self, run, trainer, log, diverged):
        """What a run came to; seconds are medians over steps, so that the first ones do not count."""
        done = slice(0, trainer.done)
        steps = max(1, trainer.done)
        everyone = np.array(self._comm.allgather(trainer.seconds[done])) if trainer.done else np.zeros((1, 1, 3))
        mean = np.median(everyone.mean(axis=0), axis=0)
        hidden = _hidden(everyone.mean(axis=0)[:, 1], trainer.overlaps[done])
        own = trainer.sent[done].sum(), trainer.received[done].sum(), trainer.flush_sent, trainer.flush_seconds
        calls, received, flushes, flush_seconds = np.mean(self._comm.allgather(own), axis=0)
        dense = sum(ring_bytes(weight.gradient.nbytes, self._comm.size) for weight in self._network.weights)
        reached = next((row for row in log.evaluations if row["accuracy"] >= self._setting.target), None)
        return {
            **log.who,
            "rate": run.rate,
            "schemes": run.assignment,
            "steps": trainer.done,
            "diverged": diverged,
            "accuracy": log.evaluations[-1]["accuracy"] if diverged is None else None,
            "loss_at": {str(row["step"]): row["test_loss"] for row in log.evaluations},
            "sent": calls / steps,
            "received": received / steps,
            "sent_with_flush": (calls + flushes) / steps,
            "ratio": dense * steps / (calls + flushes) if calls + flushes else 1.0,
            "compute": mean[0],
            "communication": mean[1],
            "communication_least": np.median(everyone[:, :, 1].min(axis=0)),
            "wait": mean[2],
            "hidden": hidden,
            "flush": flush_seconds / max(1, self._setting.epochs),
            "target": self._setting.target,
            "target_step": reached and reached["step"],
            "target_seconds": reached and reached["seconds"],
            "target_sent": reached and reached["sent"],
            "weights": log.digest,
        }


def _hidden(communication, overlaps):
    """The share of communication that is hidden: of steps that overlap, against those that do not; None without both.

    communication
        seconds of each step.
    """
    if overlaps.all() or not overlaps.any():
        return None
    return 1 - np.median(communication[overlaps]) / np.median(communication[~overlaps])


class _Log:
    """The JSON lines of one run: `weight` per weight and step, of rank 0, `error` and `evaluation`."""

    def __init__(self, report, setting, who):
        self._report, self._setting, self.who = report, setting, who
        self._waiting = []
        self.evaluations, self.evaluated, self.digest = [], 0, None

    def sums(self, trainer):
        """Takes note of the step's sums, every so many steps; they are written once the step's loss is known."""
        step, every, norms = trainer.done, self._setting.log_every, self._setting.norm_every
        if not every or step % every:
            return
        # All ranks do this, though rank 0 alone writes: one that went ahead would wait for it in the next sum.
        for key, spent in trainer.last.items():
            row = {"step": step, "key": key, "ran": spent.scheme, "bytes_sent": spent.bytes_sent}
            more = ["ratio", "encode", "decode", "wait"]
            if norms and step % norms == 0:
                more.append("residual_norm")
            self._waiting.append(row | {name: float(f"{getattr(spent, name):.{DIGITS}g}") for name in more})

    def error(self, step, error):
        """Writes how far the sums of a step are from exact ones."""
        self._report.write("error", {**self.who, "step": step, "error": float(f"{error:.{DIGITS}g}")})

    def evaluation(self, row, losses, epoch):
        """Writes an evaluation and the sums before it, whose losses are now known."""
        for waiting in self._waiting:
            loss = losses[waiting["step"] - self.evaluated - 1]
            self._report.write("weight", {**self.who, **waiting, "loss": float(f"{loss:.{DIGITS}g}")})
        self._waiting.clear()
        self.evaluated = row["step"]
        self.evaluations.append(row)
        self._report.write("evaluation", {**self.who, "epoch": round(epoch, 4), **row})
