"""One rank of the training that bench/chaos.py disturbs: `python -m gqallreduce.cli.chaos_rank job.json`.

A network learns digits; gradients are one group of an Allreduce, states are saved every so many steps, and a job begins
with the last state that is complete. Faults are in the job's file: each says at which step and on which rank. What
happens is written to events.<job>.<rank>.jsonl, a line each, before anything can go wrong.
"""

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import gqallreduce as gq
from gqallreduce.cli.training.data import load as load_data
from gqallreduce.cli.training.network import Network

SCHEME, RATE, BATCH, HIDDEN = "direct/onebit/ef", 0.1, 64, 64
EXTRA = 1 << 24  # elements of a tensor for which no memory is left; so many that none comes from the heap
STARTING = 30.0  # seconds, until all ranks are there
FAILED = 3  # exit status after an error that ends the job


PACED = "tc qdisc replace dev eth0 root tbf rate {} burst {} limit {}"  # as bench/netbed paces it
LINK = {  # kind -> (what is done to the link of this host, what undoes it)
    "link down": ("ip link set eth0 down", "ip link set eth0 up"),
    "link slow": (PACED.format("10mbit", 3028, 25_000), PACED.format("1gbit", 62_500, 2_500_000)),
    "link lost": ("ip link set eth0 down", None),
}


def _disturb_link(fault, repair, seconds):
    """Of the host of netbed on which this rank is."""
    subprocess.run(fault.split(), check=True)
    if repair is not None:
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; {repair}"], start_new_session=True)


class Trainer:
    """The training of one job, on one rank."""

    def __init__(self, job):
        from mpi4py import MPI

        self.job, self.comm, self.folder = job, MPI.COMM_WORLD, Path(job["folder"])
        self._events = open(self.folder / f"events.{job['job']}.{self.comm.rank}.jsonl", "a")  # noqa: SIM115
        self.data = load_data()
        self.network = Network((self.data.pixels, HIDDEN, self.data.classes), BATCH)
        self.network.draw(job["seed"])
        options = {"average": True, "seed": job["seed"], "timeout": STARTING, "verify": 5}
        self.allreduce = gq.Allreduce(SCHEME, comm=self.comm, **options)  # ranks start at different times
        self.allreduce.timeout = job["timeout"]
        self.step, self.heard = 0, time.monotonic()

    def note(self, what, **more):
        """One event; the time since this rank last made a step is in it."""
        seconds = time.monotonic() - self.heard
        row = {"what": what, "rank": self.comm.rank, "ranks": self.comm.size, "step": self.step, "seconds": seconds}
        self._events.write(json.dumps(row | more) + "\n")
        self._events.flush()

    # --- states ---

    def go_on(self):
        """From the last complete state, if there is one."""
        latest = self.folder / "latest"
        if latest.exists():
            self.step = int(latest.read_text())
            with np.load(self.folder / f"weights.{self.step}.npz") as file:
                for weight in self.network.weights:
                    weight.value[...] = file[weight.name]
            gq.load(self.folder / f"state.{self.step}", self.allreduce)
        self.note("begins")

    def save(self):
        """Weights and residuals; `latest` names them once all is there."""
        gq.save(self.folder / f"state.{self.step}", self.allreduce)
        if self.comm.rank == 0:
            values = {weight.name: np.ascontiguousarray(weight.value) for weight in self.network.weights}
            np.savez(self.folder / f"weights.{self.step}.npz", **values)
            part = self.folder / "latest.part"
            part.write_text(str(self.step))
            part.replace(self.folder / "latest")

    # --- the loop ---

    def train(self):
        """Until all steps are made; errors of a step are the caller's."""
        random = np.random.default_rng(self.job["seed"])
        images, labels = self.data.training.images, self.data.training.labels
        orders = [random.integers(len(labels), size=BATCH) for _ in range(self.job["steps"])]
        while self.step < self.job["steps"]:
            mine = orders[self.step][self.comm.rank :: self.comm.size]
            inputs = np.asfortranarray(images[mine].T)
            self.network.loss_and_gradients(inputs, labels[mine], self.comm.size / BATCH)
            gradients = {weight.name: weight.gradient for weight in self.network.weights}
            faults = [each for each in self.job["faults"] if each["step"] == self.step]
            try:
                self._sum(gradients, faults)
            except gq.NonFiniteError as error:
                self.note("skipped", error=type(error).__name__, named=[error.rank])
            else:
                for weight in self.network.weights:
                    weight.value -= np.float32(RATE) * weight.gradient
            self.step, self.heard = self.step + 1, time.monotonic()
            if self.step % self.job["every"] == 0:
                self._save_with([each for each in self.job["faults"] if each["step"] == self.step - 1])
        weights = hashlib.sha256(b"".join(weight.value.tobytes() for weight in self.network.weights))
        self.note("ends", accuracy=self._accuracy(), weights=weights.hexdigest())

    def _sum(self, gradients, faults):
        for fault in faults:
            mine = fault["rank"] % self.comm.size == self.comm.rank
            if fault["kind"] == "memory":
                self._without_memory(gradients, fault, mine)
            elif mine and fault["kind"] != "disk":
                self._disturb(gradients, fault)
        self.allreduce(list(gradients.values()), key=list(gradients))

    def _disturb(self, gradients, fault):
        self.note("fault", number=fault["number"], kind=fault["kind"])
        if fault["kind"] == "nan":
            next(iter(gradients.values()))[0, 0] = np.nan
        elif fault["kind"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault["kind"] in ("pause", "stop"):
            wake = f"sleep {fault['seconds']}; kill -CONT {os.getpid()}"
            subprocess.Popen(["sh", "-c", wake], start_new_session=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault["kind"] in LINK:
            _disturb_link(*LINK[fault["kind"]], fault["seconds"])
        else:
            time.sleep(fault["seconds"])

    def _without_memory(self, gradients, fault, mine):
        """One more tensor, for which one rank has no memory."""
        extra = np.zeros(EXTRA, np.float32)
        gradients[f"extra {fault['step']}"] = extra
        if mine:
            self.note("fault", number=fault["number"], kind=fault["kind"])
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))

    def _save_with(self, faults):
        full = [each for each in faults if each["kind"] == "disk"]
        mine = [each for each in full if each["rank"] % self.comm.size == self.comm.rank]
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if mine:
            self.note("fault", number=mine[0]["number"], kind="disk")
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write fails, in place of ending the process
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            self.save()
        except gq.Error as error:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            self.note("not saved", error=type(error).__name__, text=str(error)[:200])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def _accuracy(self):
        test = self.data.test
        _, right = self.network.evaluate(np.asfortranarray(test.images.T), test.labels)
        return right / len(test)


def main(path):
    """One job; ends the process at once after an error, since MPI_Finalize waits for all ranks."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # MPICH's launcher sends it to the ranks that are left
    trainer = Trainer(json.loads(Path(path).read_text()))
    try:
        trainer.go_on()
        trainer.train()
    except (gq.Error, MemoryError, OSError) as error:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        trainer.note(
            "error", error=type(error).__name__, text=str(error)[:200], named=sorted(getattr(error, "ranks", ()))
        )
        time.sleep(trainer.job["timeout"] + 0.5)  # a launcher may end the others when this one ends
        os._exit(FAILED)


if __name__ == "__main__":
    main(sys.argv[1])
