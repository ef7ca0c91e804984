"""Codecs with a scale that all ranks share: the runtime in C++ finds and uses it as Python does."""

import numpy as np
import pytest
from ranks import TIMEOUT

import gqallreduce as gq
from gqallreduce.runtime.scales import Scales

pytestmark = pytest.mark.mpi
SCHEMES = (
    "direct/terngrad",
    "ring/terngrad(clip=0)",
    "recursive_doubling/terngrad/ef",
    "allgather/terngrad(clip=1)/ef",
    "direct/thc(bits=4, bucket=1024)",
    "ring/thc(bits=3, rotate=False, clip=0)",
    "recursive_doubling/thc(bits=2, bucket=777)/ef",
    "allgather/thc(bits=8, rotate=False)/ef",
)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
# A block of small tensors, one without elements, a second block, one alone that is cut into lanes, other dtypes.
SIZES = (40, 0, 1000, 16_384, 70_001, 1, 16_000, 16_001, 15_999, 12_000, 900_000)


def tensors(rank, call):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    draws, others = np.random.default_rng([rank, call]), (np.float16, np.float64, bfloat16)
    return [
        (draws.standard_normal(size) * 10.0 ** (number % 5 - 2)).astype(
            others[number // 3 % 3] if number % 3 == 1 else "f4"
        )
        for number, size in enumerate(SIZES)
    ]


def made(comm, monkeypatch, scheme, python):
    with monkeypatch.context() as patch:
        patch.setenv("GQALLREDUCE_RUNTIME", "python" if python else "native")
        return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)


def outcome(comm, allreduce):
    """Results of calls alone and together, what they cost, and residuals."""
    found, keys = [], [str(number) for number in range(len(SIZES))]
    for call in range(2):
        group = tensors(comm.rank, call)
        allreduce(group, key=keys)
        alone = tensors(comm.rank, call + 2)[4]
        allreduce(alone, key="alone")
        found += [each.tobytes() for each in [*group, alone]]
        last = allreduce.stats.last
        found.append((last.messages, last.bytes_sent, last.saturated))
    if allreduce.scheme.feedback:
        found += [allreduce.residual(key).tobytes() for key in [*keys, "alone"]]
    return found


@every_scheme
@pytest.mark.parametrize("where", ["nowhere", "on rank 0", "on the last rank"])
def test_the_same_bits_as_in_python(comm, monkeypatch, scheme, where):
    """Also where one rank alone carries calls out in Python: the scales that ranks tell each other are the same."""
    expected = outcome(comm, made(comm, monkeypatch, scheme, True))
    python = comm.rank == {"nowhere": -1, "on rank 0": 0, "on the last rank": comm.size - 1}[where]
    assert outcome(comm, made(comm, monkeypatch, scheme, python)) == expected


@every_scheme
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("number", [2, 4, 10])
def test_a_value_that_is_not_finite(comm, monkeypatch, scheme, value, number):
    """It is named, in a tensor of a block and in others, and nothing of the call stays."""
    keys, sizes = [str(number) for number in range(len(SIZES))], SIZES
    allreduce, fresh = (made(comm, monkeypatch, scheme, False) for _ in range(2))
    group = [np.full(size, 1 + comm.rank, np.float32) for size in sizes]
    if comm.rank == comm.size - 1:
        group[number][sizes[number] // 2] = value
    with pytest.raises(gq.NonFiniteError) as raised:
        allreduce(group, key=keys)
    assert raised.value.rank == comm.size - 1
    assert (raised.value.key, raised.value.index) == (str(number), sizes[number] // 2)
    one, other = ([np.full(size, 1 + comm.rank, np.float32) for size in sizes] for _ in range(2))
    allreduce(one, key=keys)
    fresh(other, key=keys)
    assert [each.tobytes() for each in one] == [each.tobytes() for each in other]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("scale", [-1.0, np.nan, np.inf, 1e39])
def test_a_scale_that_no_rank_has(comm, monkeypatch, scale, at_once):
    """A rank lies about its own; those that receive it refuse it."""
    allreduce = made(comm, monkeypatch, "direct/terngrad", False)
    array = np.ones(100, np.float32)
    if at_once:
        allreduce(array, key="w")
    allreduce.timeout, own = 3, Scales.own
    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr(Scales, "own", lambda *given: np.full_like(own(*given), scale))
        try:
            allreduce(array, key="w")
            error = None
        except gq.Error as raised:
            error = raised
    found = comm.allgather(error)[:-1]
    if scale == -1.0:  # less than any other's: the others' counts, and the rank that lies has it too
        assert found == [None] * (comm.size - 1)
    else:
        assert all(isinstance(each, gq.Error) for each in found)
        assert any(isinstance(each, gq.WireError) for each in found)
