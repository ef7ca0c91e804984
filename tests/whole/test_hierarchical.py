"""Whole allreduces over hosts with several ranks: every promise, whatever the codec, and what travels between hosts."""

import numpy as np
import pytest
from reductions import arrays, copies, nothing_lost, residuals, same_everywhere
from schemes import WHOLE, variants

import gqallreduce as gq
from gqallreduce.coding import frame, lanes, layout
from gqallreduce.registry import CODECS
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling import model
from gqallreduce.scheduling.topology import Topology, in_hosts

SHAPES = {"2 x 2": in_hosts(4, 2), "3 and 1": Topology((0, 0, 0, 3)), "in no order": Topology((0, 1, 0, 1, 1))}
every_shape = pytest.mark.parametrize("topology", SHAPES.values(), ids=SHAPES)
every_codec = variants("text", WHOLE)
HOW = ("hierarchical", "hierarchical(outer=ring)", "hierarchical(outer=halving_doubling, leaders=one)")


def local(scheme, topology, **options):
    return LocalAllreduce(scheme, topology.size, topology=topology, **options)


@every_codec
@every_shape
@pytest.mark.parametrize("how", HOW)
def test_replicas_are_identical_and_nothing_is_lost(text, topology, how):
    for size in (0, 1, topology.size + 1, 1031):
        allreduce = local(f"{how}/{text}/ef", topology, seed=size)
        for step in range(3):
            gradients, before = arrays(step, topology.size, (size,)), residuals(allreduce)
            results = allreduce(copies(gradients), key="w")
            same_everywhere(results)
            nothing_lost(allreduce, gradients, before, results)


@every_codec
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_dtype_in_lanes_and_blocks(text, dtype, monkeypatch):
    monkeypatch.setattr(lanes, "LANE_BYTES", 128)
    monkeypatch.setattr(layout, "BLOCK", 100)
    allreduce = local(f"hierarchical/{text}/ef", SHAPES["2 x 2"], average=True)
    for step in range(2):
        gradients, before = arrays(step, 4, (67, 71), dtype, order="F"), residuals(allreduce)
        results = allreduce(copies(gradients), key="w")
        same_everywhere(results)
        nothing_lost(allreduce, gradients, before, results)


@every_codec
def test_a_group_has_the_bits_of_its_tensors_alone(text):
    shapes, keys = [(40,), (9, 33), (0,), (700,)], list("abcd")
    together, alone = (local(f"hierarchical/{text}/ef", SHAPES["3 and 1"]) for _ in range(2))
    for step in range(2):
        given = [arrays(10 * step + number, 4, shape) for number, shape in enumerate(shapes)]
        ranks = [[each[rank].copy() for each in given] for rank in range(4)]
        together(ranks, key=keys)
        for number, key in enumerate(keys):
            expected = alone(copies(given[number]), key=key)
            for rank in range(4):
                np.testing.assert_array_equal(ranks[rank][number], expected[rank])
                if key in alone.memory[rank]:
                    np.testing.assert_array_equal(together.memory[rank].residual(key), alone.memory[rank].residual(key))


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_both_runtimes_have_the_same_bits(codec, monkeypatch):
    text = CODECS[codec].example.partition("/")[2].removesuffix("/ef") if "/" in CODECS[codec].example else codec
    text = gq.Scheme.parse(text).resolved().removesuffix("/ef")
    found = []
    for runtime in ("native", "python"):
        monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
        allreduce = local(f"hierarchical/{text}/ef", SHAPES["2 x 2"])
        results = [allreduce(arrays(step, 4, (3, 500)), key="w")[0] for step in range(2)]
        spent = [(each.messages, each.bytes_sent, each.bytes_received, each.selected) for each in allreduce.spent]
        found.append(([each.tobytes() for each in results], [each.tobytes() for each in residuals(allreduce)], spent))
    assert found[0] == found[1]


@every_shape
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_raw_sums_exactly(topology, dtype):
    """Whole numbers, whose sums are exact in any order."""
    given = [np.arange(400, dtype=dtype) * (rank + 1) for rank in range(topology.size)]
    for each in local("hierarchical/raw", topology)(copies(given)):
        np.testing.assert_array_equal(each, sum(given))


@every_shape
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("text", ["onebit/ef", "adaptive(pi=4)/ef", "terngrad/ef", "raw"])
def test_what_is_not_finite_is_named_by_all_and_changes_nothing(topology, rank, text):
    allreduce = local(f"hierarchical/{text}", topology)
    allreduce(arrays(0, topology.size, (100,)), key="w")
    before = [each.copy() for each in residuals(allreduce)]
    given = arrays(1, topology.size, (100,))
    given[rank][[63, 98]] = np.nan, np.inf
    with pytest.raises(gq.NonFiniteError) as caught:
        allreduce(given, key="w")
    assert (caught.value.rank, caught.value.index) == (rank, 63)
    for one, other in zip(residuals(allreduce), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_sum_within_a_host_that_overflows_is_no_ranks_fault():
    given = [np.full(16, 3e38, np.float32) if rank < 2 else np.zeros(16, np.float32) for rank in range(4)]
    with pytest.raises(gq.NonFiniteError) as caught:
        local("hierarchical/onebit/ef", SHAPES["2 x 2"])(given, key="w")
    assert caught.value.rank is None


def test_between_hosts_travels_what_one_rank_of_each_would_send():
    """Exact messages stay within hosts: 4 bytes a value, and a header."""
    sent = {}
    topology = in_hosts(8, 4)
    allreduce = local("hierarchical/onebit", topology)

    def tap(source, to, tag, data):
        near = topology.hosts[source] == topology.hosts[to]
        sent[near] = sent.get(near, 0) + len(data)
        return data.tobytes()

    allreduce.tap = tap
    allreduce(arrays(0, 8, (1 << 16,)))
    flat = LocalAllreduce("direct/onebit", 2)
    flat(arrays(0, 2, (1 << 16,)))
    expected = sum(each.bytes_sent for each in flat.spent)
    assert sent[False] == expected + 12 * frame.SIZE  # a message of each share, not one
    assert sent[True] > 2 * 3 * 4 << 16


@pytest.mark.parametrize("hosts", [(0, 0), (0, 0, 0, 0, 0), (0, 0, 2)])
def test_a_topology_of_other_ranks_is_refused(hosts):
    with pytest.raises(ValueError, match=f"topology: got one of {len(hosts)} ranks, expected 4"):
        LocalAllreduce("hierarchical/onebit", 4, topology=Topology(hosts))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predicted_bytes_are_those_of_the_rank_that_sends_most(dtype):
    topology = in_hosts(9, 4)
    allreduce = local("hierarchical/raw", topology)
    allreduce(arrays(0, 9, (100_000,), dtype))
    predicted = model.bytes_sent("hierarchical", allreduce.scheme.codec, topology, 100_000, dtype)
    assert max(each.bytes_sent for each in allreduce.spent) == pytest.approx(predicted, rel=0.01)


@pytest.mark.parametrize("changed", [slice(40, 44), slice(32, None)])
def test_exact_values_that_are_damaged_are_another_sum_or_an_error(changed):
    """A whole message is read within its bounds; one that is too short is a WireError."""
    allreduce = local("hierarchical/onebit", SHAPES["2 x 2"])

    def tap(source, to, tag, data):
        if (source, to) == (1, 0) and len(data) == 32 + 4 * 64:
            data = data[:100] if changed.stop is None else data
            data[changed] = 255
            if changed.stop is None:
                data[16:24] = np.frombuffer(np.uint64(len(data) - 32).tobytes(), np.uint8)
        return data.tobytes()

    allreduce.tap = tap
    with pytest.raises((gq.WireError, gq.NonFiniteError)):
        allreduce(arrays(0, 4, (256,)))
