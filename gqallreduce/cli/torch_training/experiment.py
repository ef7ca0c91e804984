"""Runs of one call: each scheme, optimizer and seed from the same start, on the same mini-batches.

A seed fixes the first parameters and the mini-batches, of which each rank draws its own part.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import psutil
import torch

from gqallreduce.cli.machine import nodes
from gqallreduce.cli.torch_training import ways
from gqallreduce.cli.torch_training.recipes import RECIPES
from gqallreduce.cli.torch_training.text import ALPHABET
from gqallreduce.cli.torch_training.transformer import Transformer, loss_of
from gqallreduce.errors import NonFiniteError
from gqallreduce.models.rules import parse
from gqallreduce.stats import ratio_of

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
    """rules: as text; rate: the learning rate.

    every: steps between two sums of changes, None for sums of gradients in each step; outer: what is done with them;
    fragments, delay: of LocalSGD; hook: that of DistributedDataParallel, in place of rules; overlaps: sums of
    gradients begin in the backward pass; warmup_rules: None where the optimizer has none.
    """

    rules: str
    optimizer: str
    rate: float
    seed: int
    every: int | None = None
    hook: str | None = None
    outer: str = "nesterov"
    fragments: int = 1
    delay: int = 0
    overlaps: bool = True
    warmup_rules: str | None = None

    @property
    def scheme(self):
        """As results call it."""
        if self.hook:
            return f"DDP with gloo, {self.hook}"
        if self.every is None:
            warmup = self.warmup_rules not in (None, "dense")
            rules = f"{self.warmup_rules}, then {self.rules}" if warmup else self.rules
            return rules if self.overlaps else f"{rules}, after the backward pass"
        way = "DiLoCo" if self.outer == "nesterov" else "local SGD"
        parts = f", {self.fragments} parts, delay {self.delay}" if self.fragments > 1 or self.delay else ""
        return f"{way} {self.every}{parts}: {self.rules}"


class Experiment:
    """Trains one Run after the other; collective. device: where this rank computes, as PyTorch calls it."""

    def __init__(self, comm, text, setting, report, device="cpu"):
        self._comm, self._text, self._setting, self._report = comm, text, setting, report
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def train(self, run, progress):
        """One run; its row, the same on all ranks."""
        setting, recipe = self._setting, RECIPES[run.optimizer]
        torch.manual_seed(run.seed)
        model = Transformer(ALPHABET, setting.layers, setting.width, setting.length).to(self._device)
        optimizer = recipe.make(model.parameters(), run.rate, setting.warmup)
        way = self._way(run, model, optimizer, recipe)
        training = _Training(self._comm, self._text, setting, run, model, way, self._device)
        try:
            row = self._steps(training, run, progress)
        except NonFiniteError:
            row = training.row(None)
        way.close()
        self._report.write("run", row)
        return row

    def _way(self, run, model, optimizer, recipe):
        setting = self._setting
        if run.hook:
            return ways.Distributed(self._comm, model, optimizer, run.hook, setting.clip)
        rules = self._rules(run.rules)
        if run.every:
            return ways.Local(self._comm, model, optimizer, rules, run, setting.clip)
        options, after = recipe.options(setting.warmup), setting.clip if setting.clip_after else 0
        if setting.clip and not setting.clip_after:
            options["clip"] = setting.clip
        if recipe.warms_up and run.warmup_rules:
            options["warmup_rules"] = self._rules(run.warmup_rules)
        return ways.Attached(self._comm, model, optimizer, rules, run.seed, after, options)

    def _rules(self, text):
        """The rules of a run, after those of all runs."""
        rules = {}
        for pattern, scheme in [*(parse(self._setting.rules) if self._setting.rules else ()), *parse(text)]:
            rules.setdefault(pattern, scheme)
        return rules

    def _steps(self, training, run, progress):
        setting, found = self._setting, None
        for step in range(1, setting.steps + 1):
            progress.show(f"{run.scheme}, {run.optimizer}, seed {run.seed}, step {step}")
            training.step(step)
            if step % setting.evaluate_every == 0 or step == setting.steps:
                found = training.validate()
                if not np.isfinite(found):  # DistributedDataParallel goes on with a NaN
                    return training.row(None)
                losses = {"step": step, "loss": found, "training_loss": training.recent_loss(setting.evaluate_every)}
                self._report.write("evaluation", {**training.who, **losses, **training.so_far()})
        return training.row(found)


class _Training:
    """One model on its way."""

    def __init__(self, comm, text, setting, run, model, way, device):
        self._comm, self._text, self._setting, self._model, self._way = comm, text, setting, model, way
        self._device = device
        plain = RECIPES[run.optimizer].plain
        self.who = {
            "scheme": run.scheme,
            "optimizer": run.optimizer,
            "plain": plain,
            "rate": run.rate,
            "seed": run.seed,
        }
        self._random = torch.Generator().manual_seed(1_000_003 * run.seed + comm.rank)
        self._seconds, self._losses = {True: [], False: []}, []
        self._network = Network(comm)

    def step(self, number):
        """One mini-batch; in steps that do not overlap all sums begin when the backward pass is over."""
        setting, way = self._setting, self._way
        if isinstance(way, ways.Attached):
            way.overlaps = setting.overlap == "always" or (setting.overlap == "alternate" and number % 2 == 0)
        batch = self._batch(self._random, setting.batch // self._comm.size)
        began = perf_counter()
        loss = way.backward(batch)
        self._synchronize()
        computed = perf_counter()
        way.wait()
        waited = perf_counter()
        way.update()
        self._synchronize()
        self._seconds[way.overlaps].append((computed - began, waited - computed, perf_counter() - waited))
        self._losses.append(loss.item())
        if setting.flush and number % setting.flush == 0:
            way.flush()

    def _batch(self, random, sequences, validation=False):
        drawn = self._text.batch(random, sequences, self._setting.length, validation)
        return tuple(each.to(self._device) for each in drawn)

    def _synchronize(self):
        """Wait until a GPU has done all that was launched."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def recent_loss(self, steps):
        """The mean over ranks and the last steps."""
        return self._comm.allreduce(float(np.mean(self._losses[-steps:]))) / self._comm.size

    def so_far(self):
        """Seconds of all steps, and bytes that this rank, or its host, has sent."""
        seconds = sum(sum(step) for steps in self._seconds.values() for step in steps)
        return {"seconds": seconds, "sent": self._way.sent, "network": self._network.sent}

    @torch.no_grad()
    def validate(self):
        """The mean loss of the validation's sequences, the same for all runs; each rank computes a part."""
        setting, comm, total, count = self._setting, self._comm, 0.0, 0
        random = torch.Generator().manual_seed(12345)
        with self._network.paused(), self._way.common_model():
            for number in range(-(-setting.validation // VALIDATIONS)):
                batch = self._batch(random, VALIDATIONS, validation=True)
                if number % comm.size == comm.rank:
                    total, count = total + loss_of(self._model, *batch).item(), count + 1
            return comm.allreduce(total) / comm.allreduce(count)

    def row(self, loss):
        """What the run has come to, the mean over ranks; loss None where it left the finite numbers."""
        steps, means = max(1, len(self._losses)), {}
        for name, value in {**self.so_far(), "dense": self._way.dense}.items():
            means[name] = None if value is None else self._comm.allreduce(value) / self._comm.size
        sent, dense = means["sent"], means["dense"]
        row = {**self.who, "steps": len(self._losses), "loss": loss, "seconds": means["seconds"]}
        row |= {"sent": None, "ratio": None} if sent is None else {"sent": sent / steps, "ratio": ratio_of(dense, sent)}
        row["network"] = None if means["network"] is None else means["network"] / steps
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


class Network:
    """`sent`: bytes that this host has sent over its interfaces since the start, without pauses; None on one node."""

    def __init__(self, comm):
        self._counts, self._pauses = nodes(comm) > 1, 0
        self._first = self._now()

    def _now(self):
        if not self._counts:
            return 0
        return sum(each.bytes_sent for name, each in psutil.net_io_counters(pernic=True).items() if name != "lo")

    @property
    def sent(self):
        return self._now() - self._first - self._pauses if self._counts else None

    @contextmanager
    def paused(self):
        before = self._now()
        yield
        self._pauses += self._now() - before
