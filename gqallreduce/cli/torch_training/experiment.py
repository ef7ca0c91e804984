"""Runs of one call: each scheme, optimizer and seed from the same start, on the same mini-batches.

A seed fixes the first parameters and the mini-batches, of which each rank draws its own part.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

import gqallreduce.torch as gqt
from gqallreduce.cli.torch_training.recipes import RECIPES
from gqallreduce.cli.torch_training.text import ALPHABET
from gqallreduce.cli.torch_training.transformer import Transformer, loss_of
from gqallreduce.errors import NonFiniteError
from gqallreduce.models.rules import parse

VALIDATIONS = 64  # sequences at a time, of all ranks together
TIMES = "compute", "wait", "update"


@dataclass(frozen=True)
class Setting:
    """What all runs have in common. batch: sequences of all ranks; clip: before or after the sums, or never."""

    layers: int
    width: int
    length: int
    batch: int
    steps: int
    warmup: int
    clip: float
    clip_after: bool
    flush: int
    rules: str
    evaluate_every: int
    validation: int
    overlap: str


@dataclass(frozen=True)
class Run:
    """rules: as text; rate: the learning rate."""

    rules: str
    optimizer: str
    rate: float
    seed: int


class Experiment:
    """Trains one Run after the other; collective."""

    def __init__(self, comm, text, setting, report):
        self._comm, self._text, self._setting, self._report = comm, text, setting, report

    def train(self, run, progress):
        """One run; its row, the same on all ranks."""
        setting, recipe = self._setting, RECIPES[run.optimizer]
        torch.manual_seed(run.seed)
        model = Transformer(ALPHABET, setting.layers, setting.width, setting.length)
        optimizer = recipe.make(model.parameters(), run.rate, setting.warmup)
        options = recipe.options(setting.warmup)
        if setting.clip and not setting.clip_after:
            options["clip"] = setting.clip
        rules = {}
        for pattern, scheme in parse(setting.rules) + parse(run.rules) if setting.rules else parse(run.rules):
            rules.setdefault(pattern, scheme)
        with gqt.attach(model, optimizer, rules, comm=self._comm, seed=run.seed, **options) as attached:
            training = _Training(self._comm, self._text, setting, run, model, optimizer, attached)
            try:
                row = self._steps(training, run, progress)
            except NonFiniteError:
                row = training.row(None)
            attached.compare()
        self._report.write("run", row)
        return row

    def _steps(self, training, run, progress):
        setting, found = self._setting, None
        for step in range(1, setting.steps + 1):
            progress.show(f"{run.rules}, {run.optimizer}, seed {run.seed}, step {step}")
            training.step(step)
            if step % setting.evaluate_every == 0 or step == setting.steps:
                found = training.validate()
                losses = {"step": step, "loss": found, "training_loss": training.recent_loss(setting.evaluate_every)}
                self._report.write("evaluation", {**training.who, **losses, "sent": training.sent})
        return training.row(found)


class _Training:
    """One model on its way."""

    def __init__(self, comm, text, setting, run, model, optimizer, attached):
        self._comm, self._text, self._setting = comm, text, setting
        self._model, self._optimizer, self._attached = model, optimizer, attached
        plain = RECIPES[run.optimizer].plain
        self.who = {"scheme": run.rules, "optimizer": run.optimizer, "plain": plain, "rate": run.rate, "seed": run.seed}
        self._random = torch.Generator().manual_seed(1_000_003 * run.seed + comm.rank)
        self._seconds, self._losses, self.sent, self._dense = {True: [], False: []}, [], 0, 0

    def step(self, number):
        """One mini-batch; in steps that do not overlap all sums begin when the backward pass is over."""
        setting, attached = self._setting, self._attached
        overlaps = setting.overlap == "always" or (setting.overlap == "alternate" and number % 2 == 0)
        batch = self._text.batch(self._random, setting.batch // self._comm.size, setting.length)
        began = perf_counter()
        self._optimizer.zero_grad()
        with nullcontext() if overlaps else attached.no_sync():
            loss = loss_of(self._model, *batch)
            loss.backward()
        computed = perf_counter()
        attached.wait()
        waited = perf_counter()
        if setting.clip and setting.clip_after:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), setting.clip)
        self._optimizer.step()
        self._seconds[overlaps].append((computed - began, waited - computed, perf_counter() - waited))
        self._losses.append(loss.item())
        self.sent += attached.reducer.stats.bytes_sent
        self._dense += attached.reducer.stats.dense_bytes
        if setting.flush and number % setting.flush == 0:
            self._flush()

    def _flush(self):
        """The residuals, summed exactly, as one more step of the optimizer."""
        self._attached.flush()
        tensors = self._attached.reducer.stats.tensors.values()
        flushed = sum(4 * each.size for each in tensors if each.rule.endswith("/ef"))
        self.sent += 2 * (self._comm.size - 1) / self._comm.size * flushed

    def recent_loss(self, steps):
        """The mean over ranks and the last steps."""
        return self._comm.allreduce(float(np.mean(self._losses[-steps:]))) / self._comm.size

    @torch.no_grad()
    def validate(self):
        """The mean loss of the validation's sequences, the same for all runs; each rank computes a part."""
        setting, comm, total, count = self._setting, self._comm, 0.0, 0
        random = torch.Generator().manual_seed(12345)
        for number in range(-(-setting.validation // VALIDATIONS)):
            batch = self._text.batch(random, VALIDATIONS, setting.length, validation=True)
            if number % comm.size == comm.rank:
                total, count = total + loss_of(self._model, *batch).item(), count + 1
        return comm.allreduce(total) / comm.allreduce(count)

    def row(self, loss):
        """What the run has come to, the mean over ranks; loss None where it left the finite numbers."""
        sent, dense = (self._comm.allreduce(each) / self._comm.size for each in (self.sent, self._dense))
        row = {**self.who, "steps": len(self._losses), "loss": loss, "sent": sent / max(1, len(self._losses))}
        row |= {"ratio": dense / sent if sent else 1.0}
        medians = {way: np.median(each, axis=0) for way, each in self._seconds.items() if each}
        everyone = self._comm.allgather(medians)
        for way, name in ((True, "overlapping"), (False, "after")):
            if way in medians:
                mean = np.mean([each[way] for each in everyone], axis=0)
                row[name] = dict(zip(TIMES, map(float, mean), strict=True))
        if len(medians) == 2:
            whole = {name: sum(row[name].values()) for name in ("overlapping", "after")}
            row["hidden"] = (whole["after"] - whole["overlapping"]) / row["after"]["wait"]
        return row
