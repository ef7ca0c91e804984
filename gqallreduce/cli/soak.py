"""Random calls for a long time, each compared with the oracle in one process: `mpirun -n 3 python bench/soak.py`.

Objects of random schemes on several communicators make single calls, their halves, groups, calls under way that are
waited for in another order on each rank, steps of several calls, flushes, checkpoints that a new object goes on from,
and calls that must fail: values that are not finite, arguments that differ between ranks, a rank that leaves a step by
an error.
Every result, residual and error is compared with LocalAllreduce, which each rank runs for all ranks. What is drawn
follows from the seed alone, so that a failure can be repeated.
"""

import contextlib
import time
from collections import Counter

import numpy as np

import gqallreduce as gq
from gqallreduce.cli import machine
from gqallreduce.cli.report import Report, Silent
from gqallreduce.cli.world import on_world
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.halves import has
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling.schedule import ALLGATHER, REDUCE_SCATTER

COMMUNICATORS, OBJECTS, KEYS = 3, 6, 4
DTYPES = ("float32", "float32", "float64", "float16")
LARGEST = 1 << 17  # elements; few are so large
CHANGES = 40  # actions, after which an object is replaced by one of another scheme
# Bytes by which the least resident memory of the last tenth may be above that of the second: pools and caches have
# filled by then, and memory goes up and down by some tens of MiB within a minute.
GROWTH = 32 << 20
SETTLED = 60  # seconds before which memory is not looked at
PAGE = 4096


def add_arguments(parser):
    """The options of the benchmark."""
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (0)")
    name = "writes NAME.jsonl (bench/results/soak)"
    parser.add_argument("--output", default="bench/results/soak", metavar="NAME", help=name)


def run(arguments):
    """Runs it on COMM_WORLD; its exit status."""
    return on_world("soak", run_on, arguments)


def run_on(comm, arguments):
    """On a communicator; 0, or 1 if memory has grown. A difference is an error, which ends the job."""
    report = Report(f"{arguments.output}.jsonl") if comm.rank == 0 else Silent()
    report.write("machine", machine.describe_job(comm, None))
    soak, began, least = Soak(comm, arguments.seed), time.monotonic(), {}
    seconds = 60 * arguments.minutes
    with report.progress(100) as progress:
        shown = 0
        while comm.bcast(time.monotonic() - began < seconds):
            soak.act()
            done = min(100, int(100 * (time.monotonic() - began) / seconds))
            if time.monotonic() - began >= SETTLED:
                tenth = min(9, done // 10)
                least[tenth] = min(resident(), least.get(tenth, 1 << 62))
            for _ in range(done - shown):
                progress.step()
            progress.show(f"{soak.calls} calls")
            shown = max(done, shown)
    tenths = [least[each] for each in sorted(least) if each > 0] or [resident()]
    grown = max(comm.allgather(tenths[-1] - tenths[0]))
    row = {"seconds": time.monotonic() - began, "calls": soak.calls, "values": soak.values, "grown": grown}
    report.write("soak", row | {"seed": arguments.seed, "actions": dict(soak.done), "schemes": len(soak.schemes)})
    if comm.rank == 0:
        actions = ", ".join(f"{count} {name}" for name, count in sorted(soak.done.items()))
        print(
            f"{soak.calls} calls of {soak.values} values by {len(soak.schemes)} schemes, all as the oracle's: {actions}"
        )
        print(f"memory grew by {grown >> 10} KiB once settled; written: {arguments.output}.jsonl")
    soak.close()
    return int(grown > GROWTH)


def resident():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


class Pair:
    """An object, its oracle, and the forms of its keys."""

    def __init__(self, comm, text, average, seed):
        self.text, self.comm, self.average, self.seed = text, comm, average, seed
        self.real = gq.Allreduce(text, comm=comm, average=average, seed=seed, timeout=60)
        self.oracle = LocalAllreduce(text, comm.size, average=average, seed=seed, topology=self.real.home.link.topology)
        self.forms: dict[str, tuple] = {}
        scheme, topology = self.oracle.scheme, self.oracle.topology
        self.has_halves = all(has(scheme, half, topology) for half in (REDUCE_SCATTER, ALLGATHER))

    def same_residuals(self, keys):
        """AssertionError if a residual is not the oracle's."""
        memory = self.oracle.memory[self.comm.rank]
        for key in keys:
            if key in memory:
                mine, expected = self.real.residual(key).ravel(order="K"), memory.residual(key)
                _require(mine.tobytes() == expected.tobytes(), f"{self.text}: another residual of {key!r}")


class Soak:
    """What is done, and how often."""

    def __init__(self, comm, seed):
        self.comm, self.random = comm, np.random.default_rng(seed)
        self.mine = np.random.default_rng([seed, comm.rank])  # for what may differ between ranks
        self.communicators = [comm, *(comm.Dup() for _ in range(COMMUNICATORS - 1))]
        self.calls, self.values, self.done, self.schemes = 0, 0, Counter(), set()
        self.codecs = [each.without_schedule.removesuffix("/ef") for each in gq.schemes() if each.kind == "codec"]
        self.pairs = [self._pair() for _ in range(OBJECTS)]
        self.actions = (
            [self._call] * 6 + [self._group] * 3 + [self._under_way] * 3 + [self._halves] * 3
            + [self._not_finite, self._mismatch, self._step, self._undone, self._flush, self._checkpoint]
        )  # fmt: skip

    def _draw(self, choices):
        return choices[int(self.random.integers(len(choices)))]

    def _pair(self):
        codec = self._draw(self.codecs)
        text = f"{self._draw([*sorted(SCHEDULES), 'hierarchical(outer=ring)'])}/{codec}" + self._draw(["", "/ef"])
        self.schemes.add(text)
        return Pair(self._draw(self.communicators), text, bool(self._draw([0, 1])), int(self.random.integers(1 << 31)))

    def act(self):
        """One action on a random object."""
        if self.random.random() < 1 / CHANGES:
            number = int(self.random.integers(len(self.pairs)))
            self.pairs[number].real.close()
            self.pairs[number] = self._pair()
        action = self._draw(self.actions)
        action = action(self._draw(self.pairs)) or action  # what it did in place of itself
        self.done[action.__name__.strip("_").replace("_", " ")] += 1

    def _form(self, pair, key):
        if key not in pair.forms:
            size = int(min(LARGEST, self.random.pareto(0.4) * 10))
            shape = (size,) if size < 6 or self.random.random() < 0.5 else (size // 3, 3)
            pair.forms[key] = shape, self._draw(DTYPES), self._draw("CF")
        return pair.forms[key]

    def _keys(self, pair, count):
        """Of so many keys, all different."""
        keys = [f"key {number}" for number in self.random.permutation(KEYS)[:count]]
        for key in keys:
            self._form(pair, key)
        return keys

    def _arrays(self, pair, key):
        """One of each rank; the same on all ranks."""
        shape, dtype, order = pair.forms[key]
        scale = np.exp2(self.random.integers(-8, 4))
        self.values += int(np.prod(shape))
        return [np.array(scale * self.random.standard_normal(shape), dtype, order=order) for _ in range(self.comm.size)]

    def _expected(self, pair, arrays, key):
        """The oracle's results or its error."""
        self.calls += 1
        try:
            return pair.oracle([_copy(each) for each in arrays], key=key), None
        except gq.NonFiniteError as error:
            return None, error

    def _compare(self, pair, call, arrays, key):
        """Of one call, or of one that is under way: `call` returns its result."""
        expected, problem = self._expected(pair, arrays, key)
        try:
            got = call()
        except gq.NonFiniteError as error:
            _require(problem is not None, f"{pair.text}: {error}")
            same = (error.rank, error.key, error.index) == (problem.rank, problem.key, problem.index)
            _require(same, f"{pair.text}: {error}, expected {problem}")
        else:
            _require(problem is None, f"{pair.text}: no {problem}")
            mine = expected[self.comm.rank]
            pairs = zip(got, mine, strict=True) if isinstance(got, list) else [(got, mine)]
            _require(all(_bytes(one) == _bytes(two) for one, two in pairs), f"{pair.text}: another sum of {key!r}")
        pair.same_residuals(key if isinstance(key, list) else [key])

    # --- actions ---

    def _call(self, pair):
        (key,) = self._keys(pair, 1)
        arrays = self._arrays(pair, key)
        mine = _copy(arrays[self.comm.rank])
        self._compare(pair, lambda: pair.real(mine, key=key), arrays, key)

    def _halves(self, pair):
        """A reduce-scatter and an allgather, which are a call; by schemes that have both."""
        (key,) = self._keys(pair, 1)
        if pair.average or pair.forms[key][1] == "float16" or not pair.has_halves:
            self._call(pair)
            return self._call
        arrays = self._arrays(pair, key)
        mine = _copy(arrays[self.comm.rank])

        def both():
            shard = pair.real.reduce_scatter(mine, key=key)
            return pair.real.allgather(shard, out=np.full_like(mine, np.nan), key=key)

        self._compare(pair, both, arrays, key)
        return None

    def _group(self, pair):
        keys = self._keys(pair, int(self.random.integers(1, KEYS + 1)))
        each = [self._arrays(pair, key) for key in keys]
        ranks = [[arrays[rank] for arrays in each] for rank in range(self.comm.size)]
        mine = [_copy(array) for array in ranks[self.comm.rank]]
        self._compare(pair, lambda: pair.real(mine, key=keys), ranks, keys)

    def _under_way(self, pair):
        """Calls of two objects on one communicator, waited for in an order of each rank's own."""
        other, begun = self._draw([each for each in self.pairs if each.comm is pair.comm]), []
        for each in {id(pair): pair, id(other): other}.values():
            for key in self._keys(each, int(self.random.integers(1, KEYS + 1))):
                arrays = self._arrays(each, key)
                request = each.real.start(_copy(arrays[self.comm.rank]), key=key)
                begun.append((each, request, arrays, key))
        for number in self.mine.permutation(len(begun)):
            with contextlib.suppress(gq.Error):  # asked again below
                begun[number][1].wait()
        for each, request, arrays, key in begun:
            self._compare(each, request.wait, arrays, key)

    def _not_finite(self, pair):
        (key,) = self._keys(pair, 1)
        arrays = self._arrays(pair, key)
        flat = arrays[int(self.random.integers(self.comm.size))].reshape(-1)
        if flat.size:
            flat[int(self.random.integers(flat.size))] = self._draw([np.nan, np.inf, -np.inf])
        mine = _copy(arrays[self.comm.rank])
        self._compare(pair, lambda: pair.real(mine, key=key), arrays, key)

    def _mismatch(self, pair):
        """A new key, of another shape on one rank: all ranks raise, and nothing is kept."""
        odd = int(self.random.integers(self.comm.size))
        try:
            pair.real(np.ones(5 + (self.comm.rank == odd), np.float32), key=f"mismatch {self.calls}")
        except gq.MismatchError as error:
            _require(error.field == "shape", str(error))
        else:
            _require(self.comm.size == 1, f"{pair.text}: no MismatchError")
            pair.real.memory.forget(f"mismatch {self.calls}")
        self.calls += 1

    def _step(self, pair):
        with pair.real.step():
            for key in self._keys(pair, 2):
                arrays = self._arrays(pair, key)
                mine = _copy(arrays[self.comm.rank])
                self._compare(pair, lambda mine=mine, key=key: pair.real(mine, key=key), arrays, key)

    def _undone(self, pair):
        """A step that a rank leaves by an error of its own: its calls count nowhere."""
        (key,) = self._keys(pair, 1)
        arrays, odd = self._arrays(pair, key), int(self.random.integers(self.comm.size))
        try:
            with pair.real.step():
                pair.real(_copy(arrays[self.comm.rank]), key=key)
                if self.comm.rank == odd:
                    raise OSError("left")
        except OSError:
            _require(self.comm.rank == odd, f"{pair.text}: another rank left")
        except gq.Error:
            pass
        else:
            raise AssertionError(f"{pair.text}: a step that a rank left has taken effect")
        pair.same_residuals([key])
        self.calls += 1

    def _flush(self, pair):
        """Residuals summed exactly, and zero then. The oracle's are added in no order of a schedule."""
        keys = [key for key in pair.forms if key in pair.oracle.memory[0]]
        if not keys:
            return
        key = self._draw(keys)
        residuals = [memory.residual(key).astype(np.float64) for memory in pair.oracle.memory]
        scale = 1 / self.comm.size if pair.average else 1.0
        got = pair.real.flush(key).ravel(order="K")
        allowed = 1e-5 * np.sum([np.abs(each) for each in residuals], axis=0) + 1e-30
        _require((np.abs(got - scale * np.sum(residuals, axis=0)) <= allowed).all(), f"{pair.text}: another flush")
        for memory in pair.oracle.memory:
            memory.commit({key: memory.zeroed(key)})
        pair.same_residuals([key])
        self.calls += 1

    def _checkpoint(self, pair):
        """A new object goes on from the state of the old one."""
        state = pair.real.state_dict()
        pair.real.close()
        pair.real = gq.Allreduce(pair.text, comm=pair.comm, average=pair.average, timeout=60)
        pair.real.load_state_dict(state)
        pair.same_residuals(pair.forms)

    def close(self):
        """Free what was made."""
        for pair in self.pairs:
            pair.real.close()
        for each in self.communicators[1:]:
            each.Free()


def _copy(array):
    return [each.copy(order="K") for each in array] if isinstance(array, list) else array.copy(order="K")


def _bytes(array):
    return np.asarray(array).tobytes()


def _require(condition, otherwise):
    if not condition:
        raise AssertionError(otherwise)
