"""What the tests under MPI share: inputs of every rank, the oracle in one process, and errors seen from everywhere."""

import os
import zlib

import numpy as np
import pytest
from mpi4py import MPI

import gqallreduce as gq
from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding.order import to_array, to_vector
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling.topology import Topology
from gqallreduce.transport import dense

TIMEOUT = 20  # long enough for a crowded machine


def _texts(codec, schedule, feedback):
    plain = gq.Scheme.parse(CODECS[codec].example).resolved(schedule).removesuffix("/ef")
    return [plain + "/ef" * each for each in (feedback or (False, True))]


def _family(codec):
    """The file of what it has in common with codecs that differ from it in data alone, or its own."""
    shared = [base.__module__ for base in CODECS[codec].__mro__ if base.__module__.startswith("gqallreduce.coding.")]
    return shared[0] if shared[0] != "gqallreduce.coding.codec" else codec


def schemes(*feedback):
    """Every codec's example on every schedule, without and with /ef (or only as told); of a family of codecs that
    differ in data alone the first one that devices have kernels for, and the others on one schedule. With `--few` each
    codec once, and each schedule."""
    found, families, schedules = [], set(), sorted(SCHEDULES)
    for number, codec in enumerate(sorted(CODECS, key=lambda name: (CODECS[name]().host_only, name))):
        first = _family(codec) not in families
        families.add(_family(codec))
        mine = schedules[number % len(schedules)]
        for schedule in schedules if first else [mine]:
            texts = _texts(codec, schedule, feedback)
            few = texts[number % len(texts)] if schedule == mine else None
            found += [pytest.param(text, marks=() if text == few else pytest.mark.slow) for text in texts]
    return found


def pairs(*feedback):
    """Every codec and every schedule, but not each with each: enough for what concerns the carrying alone."""
    codecs, schedules = sorted(CODECS), sorted(SCHEDULES)
    count = max(len(codecs), len(schedules))
    return [
        text
        for number in range(count)
        for text in _texts(codecs[number % len(codecs)], schedules[number % len(schedules)], feedback)
    ]


def carrying(texts):
    """Parametrizes `scheme` of a test that concerns the carrying alone. With `--few` each schedule has one codec, which
    follows from the name of the test."""

    def mark(test):
        turn, on_schedule = zlib.crc32(test.__name__.encode()), {}
        for text in texts:
            on_schedule.setdefault(text.partition("/")[0], []).append(text)
        taken = {found[turn % len(found)] for found in on_schedule.values()}
        found = [pytest.param(text, marks=() if text in taken else pytest.mark.slow) for text in texts]
        return pytest.mark.parametrize("scheme", found)(test)

    return mark


def in_turn(texts):
    """Of `pairs()`: with `--few` every other codec with /ef and those between without."""
    return [
        text if number // 2 % 2 == number % 2 else pytest.param(text, marks=pytest.mark.slow)
        for number, text in enumerate(texts)
    ]


def inputs(size, shape, dtype="float32", order="C", step=0):
    """One array per rank, the same list on every rank; order as in gqallreduce/coding/order.py."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    draws = [np.random.default_rng([rank, step]).standard_normal(shape) for rank in range(size)]
    return [to_array(to_vector(draw, order).astype(dtype), shape, order) for draw in draws]


def bytes_of(array):
    return np.asarray(array).tobytes()


def alike(comm, value):
    """Is it the same on all ranks, an array bit for bit?"""
    return len(set(comm.allgather(bytes_of(value) if isinstance(value, np.ndarray) else value))) == 1


def state(allreduce):
    """Of all keys, what `state_dict` has of them, to be compared."""
    return _frozen(allreduce.state_dict()["keys"])


def _frozen(value):
    return {name: _frozen(each) for name, each in value.items()} if isinstance(value, dict) else bytes_of(value)


def residual_of(memory, key, array):
    return to_array(memory.residual(key), array.shape, Buffer(array).order)


def topology_of(comm):
    """Which ranks share a host, as a Link finds it."""
    names = comm.allgather(os.environ.get("GQALLREDUCE_HOST") or MPI.Get_processor_name())
    return Topology(tuple(map(names.index, names)))


class Oracle:
    """LocalAllreduce on rank 0, of which every rank is told its part."""

    def __init__(self, comm, scheme, **options):
        self.comm = comm
        topology = topology_of(comm)
        self.local = LocalAllreduce(scheme, comm.size, topology=topology, **options) if comm.rank == 0 else None

    def __call__(self, arrays, key="w"):
        """(bytes of the result, of the residual or None, (bytes sent, bytes received, messages, selected))."""
        try:
            parts = self._parts(arrays, key) if self.comm.rank == 0 else None
        except Exception as error:  # the others wait for this rank
            parts = [error] * self.comm.size
        part = self.comm.scatter(parts)
        if isinstance(part, Exception):
            raise part
        return part

    def _parts(self, arrays, key):
        results = self.local([array.copy(order="K") for array in arrays], key=key)
        parts = []
        for memory, spent, result in zip(self.local.memory, self.local.spent, results, strict=True):
            residual = residual_of(memory, key, result).tobytes() if key in memory else None
            counted = spent.bytes_sent, spent.bytes_received, spent.messages, spent.selected
            parts.append((bytes_of(result), residual, counted))
        return parts

    def error(self, arrays, key="w"):
        """(rank, key, index) of the NonFiniteError that the call must raise."""
        found = None
        if self.comm.rank == 0:
            with pytest.raises(gq.NonFiniteError) as caught, np.errstate(all="ignore"):
                self.local([array.copy(order="K") for array in arrays], key=key)
            found = caught.value.rank, caught.value.key, caught.value.index
        return self.comm.bcast(found)


def seen(allreduce, array, key="w"):
    """What an Oracle tells, from a call on `array` itself."""
    assert allreduce(array, key=key) is array
    residual = bytes_of(allreduce.residual(key)) if allreduce.scheme.feedback else None
    last = allreduce.stats.last
    return bytes_of(array), residual, (last.bytes_sent, last.bytes_received, last.messages, last.selected)


def errors(comm, call, /, *arguments, **options):
    """The exception that `call` raised on each rank, None where it raised none."""
    caught = None
    try:
        call(*arguments, **options)
    except Exception as error:
        caught = error
    return comm.allgather(None if caught is None else (type(caught), vars(caught)))


def everywhere(comm, call, /, *arguments, **options):
    """(type, attributes) of the exception that every rank raised alike."""
    found = errors(comm, call, *arguments, **options)
    assert None not in found, found
    assert all(each == found[0] for each in found), found
    return found[0]


def raised(error):
    raise error


def sum_that_mpi_fails(comm, monkeypatch, allreduce):
    """`errors` of a call of key "a", of 60 elements, in which rank 0's MPI_Iallreduce fails: it has no such type.

    MPICH ends the process then; with it a failure is pretended.
    """
    with monkeypatch.context() as patch:
        if comm.rank == 0 and MPI.get_vendor()[0] == "Open MPI":
            patch.setattr(dense, "_TYPES", dict.fromkeys(dense._TYPES, MPI.DATATYPE_NULL))
        elif comm.rank == 0:
            patch.setattr(dense.Summing, "native", lambda _: raised(MPI.Exception(MPI.ERR_OTHER)))
        return errors(comm, allreduce, np.ones(60, np.float32), key="a")


def works(comm, allreduce, key="after"):
    """A call of `allreduce` gives the same sum on all ranks."""
    array = np.arange(1, 40, dtype=np.float32) * (comm.rank + 1)
    allreduce(array, key=key)
    assert np.isfinite(array).all()
    assert len(set(comm.allgather(bytes_of(array)))) == 1


def guarded(allreduce, values, guard=500):
    """The error of a call on these values, or None; what lies around the buffer must stay, and a sum be finite."""
    around = np.full(values.size + 2 * guard, 7.0, np.float32)
    array = around[guard:-guard]
    array[:] = values
    try:
        allreduce(array, key="w")
    except gq.Error as error:
        return error
    finally:
        assert (around[:guard] == 7).all()
        assert (around[-guard:] == 7).all()
    assert np.isfinite(array).all()
    return None
