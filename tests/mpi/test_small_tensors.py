"""Groups of small float32 tensors, which the runtime works on where they are, under MPI."""

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, carrying, everywhere, inputs, pairs, state

import gqallreduce as gq

pytestmark = pytest.mark.mpi
SIZES = (256, 0, 1, 3, 64, 255, 257, 1000, 31, 5000, 7, 256)
KEYS = [f"w{number}" for number in range(len(SIZES))]


def make(comm, scheme, **options):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)


def gradients(comm, step=0):
    return [inputs(comm.size, (size,), step=100 * step + place)[comm.rank] for place, size in enumerate(SIZES)]


@carrying(pairs())
@pytest.mark.parametrize("average", [False, True])
def test_they_get_what_calls_of_their_own_give_them(comm, scheme, average):
    """In place, and into other memory."""
    alone, grouped = make(comm, scheme, average=average), make(comm, scheme, average=average)
    for step in range(4):
        expected, got = gradients(comm, step), gradients(comm, step)
        for key, array in zip(KEYS, expected, strict=True):
            alone(array, key=key)
        into = [np.empty_like(array) for array in got] if step == 2 else None
        result = grouped(got, key=KEYS, out=into)
        assert [bytes_of(array) for array in result] == [bytes_of(array) for array in expected]
        if into is not None:
            assert [bytes_of(array) for array in got] == [bytes_of(array) for array in gradients(comm, step)]
    assert state(grouped) == state(alone)


@pytest.mark.mpi(min_size=2)
@carrying([scheme for scheme in pairs() if "/threshold" not in scheme])
def test_a_sum_that_overflows_is_an_error_and_changes_nothing(comm, scheme):
    grouped, alone = make(comm, scheme), make(comm, scheme)
    for each in (grouped, alone):
        each(gradients(comm), key=KEYS)
    before, flawed = state(grouped), gradients(comm, 1)
    flawed[3][:] = 3e38
    kind, said = everywhere(comm, grouped, flawed, key=KEYS)
    assert (kind, said["key"]) == (gq.NonFiniteError, KEYS[3])
    assert state(grouped) == before
    results = [each(gradients(comm, 2), key=KEYS) for each in (grouped, alone)]
    assert [bytes_of(array) for array in results[0]] == [bytes_of(array) for array in results[1]]


@carrying(pairs())
def test_a_nan_is_named_by_its_key_and_place(comm, scheme):
    grouped = make(comm, scheme)
    grouped(gradients(comm), key=KEYS)
    before, flawed = state(grouped), gradients(comm, 1)
    if comm.rank == comm.size - 1:
        flawed[7][401] = np.nan
        flawed[9][0] = np.inf
    kind, said = everywhere(comm, grouped, flawed, key=KEYS)
    assert (kind, said["rank"], said["key"], said["index"]) == (gq.NonFiniteError, comm.size - 1, KEYS[7], 401)
    assert state(grouped) == before


@pytest.mark.parametrize("exact", ["direct/raw/ef", "ring/raw/ef", "recursive_doubling/raw/ef"])
def test_residuals_that_have_been_sent_without_loss_are_zero(comm, exact):
    reducer = gq.Reducer(f"*={exact}", comm=comm, timeout=TIMEOUT, average=False, warmup=2, warmup_rules="*=onebit/ef")
    for step in range(5):
        left = [reducer.allreduces["onebit/ef"].residual(key).copy() for key in KEYS] if step == 2 else None
        given = gradients(comm, step)
        exactly = [comm.allreduce(array.astype(np.float64)) for array in given]
        reducer(dict(zip(KEYS, given, strict=True)))
        if step == 2:
            exactly = [
                whole + comm.allreduce(rest.astype(np.float64)) for whole, rest in zip(exactly, left, strict=True)
            ]
        if step >= 2:
            for key, got, expected in zip(KEYS, given, exactly, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
                assert not reducer.allreduces[exact].residual(key).any()


@pytest.mark.parametrize("scheme", ["direct/onebit/ef", "ring/qsgd(bits=4)/ef", "direct/raw/ef", "direct/float16/ef"])
def test_halves_of_a_group_are_those_of_its_keys(comm, scheme):
    """Residuals too; a reduce-scatter leaves none where a rank's own part is."""
    alone, grouped = make(comm, scheme), make(comm, scheme)
    for step in range(6):
        expected, got = gradients(comm, step), gradients(comm, step)
        if step % 3 == 2:  # an allgather before, whose error a second reduce-scatter finds in the memory that it writes
            for key, array in zip(KEYS, expected, strict=True):
                alone.reduce_scatter(array.copy(), key=key)
            grouped.reduce_scatter([array.copy() for array in got], key=KEYS)
        shards = [alone.reduce_scatter(array, key=key) for key, array in zip(KEYS, expected, strict=True)]
        found = grouped.reduce_scatter(got, key=KEYS)
        assert [bytes_of(shard) for shard in found] == [bytes_of(shard) for shard in shards]
        assert state(grouped) == state(alone)
        into = [np.empty_like(array) for array in got]
        for key, shard, array in zip(KEYS, shards, expected, strict=True):
            alone.allgather(shard.copy(), out=array, key=key)
        grouped.allgather([shard.copy() for shard in found], out=into, key=KEYS)
        assert [bytes_of(array) for array in into] == [bytes_of(array) for array in expected]
        assert state(grouped) == state(alone)


@pytest.mark.parametrize(
    "mine", [lambda rank: rank % 2, lambda rank: rank == 0, lambda rank: rank > 0], ids=["odd", "0", "others"]
)
def test_steps_at_once_and_one_by_one_are_the_same_calls(comm, mine):
    """Some ranks give all gradients of a model together, others start one after the other; also where a step fails."""
    rules, options = "w1*=ring/raw; *=direct/onebit/ef", {"comm": comm, "timeout": TIMEOUT}
    with gq.Reducer(rules, **options) as reducer, gq.Reducer(rules, **options) as expected:
        for each in (reducer, expected):
            each(dict(zip(KEYS, gradients(comm), strict=True)))
        assert len(reducer.buckets) > 1
        for step in range(1, 9):
            named, same = (dict(zip(KEYS, gradients(comm, step), strict=True)) for _ in range(2))
            flawed = {3: "w10", 5: "w3", 6: None}.get(step, "")
            for key in KEYS if flawed is None else [flawed] * bool(flawed):
                if comm.rank == comm.size - 1 and named[key].size:
                    named[key][-1] = same[key][-1] = np.nan
            found = []
            for each, given, starts in ((reducer, named, mine(comm.rank)), (expected, same, True)):
                try:
                    if starts:
                        for key in KEYS:
                            each.start(key, given[key])
                        each.wait()
                    else:
                        each(given)
                    found.append((each.stats.bytes_sent, [bytes_of(array) for array in given.values()]))
                except gq.NonFiniteError as error:
                    found.append((error.rank, error.key, error.index))
            assert found[0] == found[1]
            assert (len(found[0]) == 3) == (flawed != "")
            for scheme in reducer.allreduces:
                assert state(reducer.allreduces[scheme]) == state(expected.allreduces[scheme])
