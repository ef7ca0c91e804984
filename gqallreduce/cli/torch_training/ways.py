"""How ranks train together: gradients summed by this package or by DistributedDataParallel, or changes now and then.

Each way has `backward(batch)` -> the loss, after which `wait` returns when this rank may step; `update`, the step of
the optimizer; `sent` and `dense`, bytes of this rank so far and what exact sums would have sent, None where not known.
"""

import contextlib
import os
import shutil
import tempfile

import torch

import gqallreduce.torch as gqt
from gqallreduce.cli.torch_training.transformer import loss_of

RANK = 4  # of PowerSGD's factors
ONE_BUCKET = 1 << 20  # MB: with several, gloo makes the sums of that hook in other orders on other ranks, and fails


OUTER = {"nesterov": gqt.nesterov, "mean": gqt.mean}


class Attached:
    """Gradients are summed by rules, from within the backward pass on where it `overlaps`.

    clip: of the norm of sums; 0 for none.
    """

    def __init__(self, comm, model, optimizer, rules, seed, clip, options):
        self._model, self._optimizer, self._clip = model, optimizer, clip
        self._ranks, self._attached = comm.size, gqt.attach(model, optimizer, rules, comm=comm, seed=seed, **options)
        self.sent = self.dense = 0
        self.overlaps = True

    def backward(self, batch):
        with contextlib.nullcontext() if self.overlaps else self._attached.no_sync():
            return _backward(self._model, self._optimizer, batch)

    def wait(self):
        self._attached.wait()

    def update(self):
        _clip(self._model, self._clip)
        self._optimizer.step()
        stats = self._attached.reducer.stats
        self.sent, self.dense = self.sent + stats.bytes_sent, self.dense + stats.dense_bytes

    def flush(self):
        """The residuals, summed exactly, as one more step of the optimizer."""
        self._attached.flush()
        tensors = self._attached.reducer.stats.tensors.values()
        flushed = sum(4 * each.size for each in tensors if each.rule.endswith("/ef"))
        self.sent += _exact(flushed, self._ranks)

    def common_model(self):
        """A context in which the model is that of all ranks."""
        return contextlib.nullcontext()

    def close(self):
        """Compares the ranks' models."""
        self._attached.compare()
        self._attached.detach()


class Local:
    """Each rank trains by itself; every so many steps their changes are summed by rules."""

    overlaps = True

    def __init__(self, comm, model, optimizer, rules, run, clip):
        self._model, self._optimizer, self._clip = model, optimizer, clip
        options = {name: getattr(run, name) for name in ("every", "fragments", "delay", "seed")}
        self._local = gqt.LocalSGD(model, optimizer, OUTER[run.outer], rules=rules, comm=comm, **options)
        self._nbytes = 4 * sum(each.numel() for each in model.parameters())
        self._ranks, self._counted = comm.size, [0] * len(self._local.fragments)
        self.sent = self.dense = 0

    def backward(self, batch):
        return _backward(self._model, self._optimizer, batch)

    def wait(self):
        _clip(self._model, self._clip)

    def update(self):
        self._local.step()
        for number, part in enumerate(self._local.fragments):
            stats = part.reducer.stats
            if stats.steps > self._counted[number]:
                self.sent, self._counted[number] = self.sent + stats.bytes_sent, stats.steps
        self.dense += _exact(self._nbytes, self._ranks)

    def common_model(self):
        return self._local.outer_model()

    def close(self):
        self._local.compare()
        self._local.close()


class Distributed:
    """PyTorch's own: DistributedDataParallel over gloo, with one of its communication hooks."""

    overlaps = True
    sent = dense = None

    def __init__(self, comm, model, optimizer, hook, clip):
        from torch import distributed

        self._comm, self._folder = comm, _join(comm, distributed)
        self._ddp, self._model, self._optimizer, self._clip = None, model, optimizer, clip
        try:
            self._begin(hook)
        except BaseException:
            self.close()
            raise

    def _begin(self, hook) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        bucket = ONE_BUCKET if hook == "powersgd" else None
        self._ddp = torch.nn.parallel.DistributedDataParallel(self._model, bucket_cap_mb=bucket)
        if hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
            self._ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook != "fp32":
            self._ddp.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))

    def backward(self, batch):
        return _backward(self._ddp, self._optimizer, batch)

    def wait(self):
        """The backward pass has waited."""

    def update(self):
        _clip(self._model, self._clip)
        self._optimizer.step()

    def common_model(self):
        return contextlib.nullcontext()

    def close(self):
        """None of gloo's threads is left at the end of the interpreter."""
        del self._ddp
        torch.distributed.destroy_process_group()
        self._comm.Barrier()  # no rank looks into the folder any more
        shutil.rmtree(self._folder, ignore_errors=True)


def _join(comm, distributed):
    """Make a process group of all ranks; the folder where they have met."""
    if os.path.exists("/sys/class/net/eth0"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")  # of the emulated hosts
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    where = f"file://{folder}/meet"
    distributed.init_process_group("gloo", init_method=where, rank=comm.rank, world_size=comm.size)
    return folder


def _exact(nbytes, ranks):
    """What a rank sends of an exact sum."""
    return 2 * (ranks - 1) / ranks * nbytes


def _backward(model, optimizer, batch):
    optimizer.zero_grad()
    loss = loss_of(model, *batch)
    loss.backward()
    return loss


def _clip(model, norm):
    if norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
