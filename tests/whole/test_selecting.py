"""What is chosen of own values, and sums that lose nothing, are the same in both runtimes: bytes, statistics, residuals
and errors."""

from zlib import crc32

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import gqallreduce as gq
from gqallreduce.coding import frame
from gqallreduce.coding.layout import Form
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.runtime.native import summed_in_residual
from gqallreduce.runtime.plans import Plans
from gqallreduce.scheduling import instructions as code
from gqallreduce.scheduling.instructions import instructions
from gqallreduce.scheduling.topology import Topology, apart
from gqallreduce.scheme import Scheme
from gqallreduce.transport.exchange import FIRST

RUNTIMES = "native", "python"
SCHEMES = (
    "direct/adaptive(pi=7)/ef", "ring/adaptive(pi=64, signs=separate)/ef", "recursive_doubling/topk(k=9)/ef",
    "direct/topk(ratio=0.05)", "direct/topk(ratio=0.05, reuse=2)/ef", "allgather/adaptive(pi=3, scope=column)/ef",
    "recursive_doubling/adaptive(pi=5, coding=golomb)/ef", "ring/adaptive(pi=2, scope=column, coding=golomb)",
    "direct/terngrad(shared=False)/ef", "ring/terngrad(shared=False, clip=0)",
    "direct/topk(k=9, values=qsgd(bits=4, bucket=16))/ef", "ring/topk(ratio=0.4, values=float16)",
    "recursive_doubling/topk(ratio=0.1, values=fp8)/ef",
    "allgather/topk(ratio=0.05, values=qsgd(bits=3, coding=elias), reuse=2)/ef",
    "halving_doubling/adaptive(pi=64)/ef",
)  # fmt: skip
EXACT = (
    "direct/terngrad", "ring/threshold(tau=0.5)/ef", "recursive_doubling/thc(bits=4)", "direct/thc(bits=3)/ef",
    "direct/topk(ratio=0.05, sums=union)/ef", "ring/topk(ratio=0.4, sums=union)",
    "allgather/topk(k=9, sums=union, reuse=2, balance=2)/ef",
    "direct/topk(ratio=0.05, sums=union, values=qsgd(bits=4, bucket=16))/ef",
    "ring/topk(ratio=0.4, sums=union, values=bfloat16)", "recursive_doubling/topk(k=9, sums=union, values=natural)/ef",
    "allgather/topk(ratio=0.2, sums=union, values=qsgd(bits=2, norm=l2, coding=huffman), balance=2)/ef",
)  # fmt: skip
every_scheme = pytest.mark.parametrize("text", SCHEMES)
of_both = pytest.mark.parametrize("runtime", ["both"])  # these tests choose their runtimes


def calls(runtime, text, inputs, keys):
    """Results, what was sent and the residuals of calls, all as bytes and numbers; inputs[call][rank] are arrays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GQALLREDUCE_RUNTIME", runtime)
        allreduce = LocalAllreduce(text, len(inputs[0]))
    found = []
    for arrays in inputs:
        mine = [[array.copy(order="K") for array in of_rank] for of_rank in arrays]
        allreduce(mine, key=keys)
        found += [array.tobytes() for of_rank in mine for array in of_rank]
        found += [(spent.messages, spent.bytes_sent, spent.selected, spent.saturated) for spent in allreduce.spent]
    if allreduce.scheme.feedback:
        found += [memory.residual(key).tobytes() for memory in allreduce.memory for key in keys]
    return found


def same_in_both(text, inputs):
    keys = [f"w{number}" for number in range(len(inputs[0][0]))]
    native, python = (calls(runtime, text, inputs, keys) for runtime in RUNTIMES)
    assert native == python


sizes = st.one_of(st.integers(0, 40), st.sampled_from([1000, 32767, 32768, 70_001]))
forms = st.tuples(sizes, st.sampled_from(["float32", "float64", "float16"]), st.sampled_from([1.0, 0.0, 8.0]))


small = st.tuples(st.integers(0, 300), st.just("float32"), st.sampled_from([1.0, 0.0, 8.0]))
several = st.one_of(st.lists(forms, min_size=1, max_size=5), st.lists(small, min_size=2, max_size=9))


def inputs_of_two_calls(ranks, groups, seed):
    """Of some, values are rounded so that many are equal, or most are zero."""
    draws = np.random.default_rng(seed)

    def array(size, dtype, step):
        x = draws.standard_normal(size)
        return (np.round(x * step) / step if step else x * (draws.random(size) < 0.03)).astype(dtype)

    return [[[array(*form) for form in groups] for _ in range(ranks)] for _ in range(2)]


@of_both
@every_scheme
@given(ranks=st.integers(1, 4), groups=several, seed=st.integers(0, 99))
@examples(25)
def test_tensors_of_all_sizes_and_dtypes_alone_and_together(runtime, text, ranks, groups, seed):
    same_in_both(text, inputs_of_two_calls(ranks, groups, seed))


@of_both
@pytest.mark.parametrize("text", EXACT)
@given(ranks=st.integers(1, 5), groups=several, seed=st.integers(0, 99))
@examples(25)
def test_exact_sums_are_the_same_too(runtime, text, ranks, groups, seed):
    same_in_both(text, inputs_of_two_calls(ranks, groups, seed))


@of_both
@every_scheme
def test_ties_of_a_long_tensor_are_broken_in_memory_order(runtime, text):
    """Its pieces are many lanes'; all magnitudes are alike."""
    signs = np.random.default_rng(0).choice([-1, 1], (2, 900_000)).astype(np.float32)
    same_in_both(text, [[[each] for each in signs]])


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("text", SCHEMES + EXACT)
@pytest.mark.parametrize("size", [20, 3000, 400_000])
@pytest.mark.parametrize("at", [0.0, 0.3, 0.5, 0.99])
def test_a_value_that_is_not_finite_is_named_and_the_next_call_is_right(monkeypatch, runtime, text, size, at):
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
    place, keys = int(at * size), ["a", "b"]
    inputs = np.random.default_rng(1).standard_normal((3, 2, size)).astype(np.float32)
    allreduce, fresh = LocalAllreduce(text, 3), LocalAllreduce(text, 3)
    bad = inputs.copy()
    bad[1, 1, place] = np.nan
    with pytest.raises(gq.NonFiniteError) as raised:
        allreduce([list(of_rank) for of_rank in bad], key=keys)
    assert (raised.value.rank, raised.value.key, raised.value.index) == (1, "b", place)
    mine, others = ([list(of_rank.copy()) for of_rank in inputs] for _ in range(2))
    allreduce(mine, key=keys)
    fresh(others, key=keys)
    assert [x.tobytes() for of_rank in mine for x in of_rank] == [x.tobytes() for of_rank in others for x in of_rank]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("coding", ["fixed", "golomb"])
@pytest.mark.parametrize("schedule", ["recursive_doubling", "ring", "direct"])
def test_a_sum_that_is_too_large_is_named_beside_one_with_fewer_entries_than_columns(
    monkeypatch, runtime, coding, schedule
):
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
    allreduce = LocalAllreduce(f"{schedule}/adaptive(pi=40000, coding={coding})/ef", 3)
    inputs = [[np.ones(9000, np.float32), np.full(10, 3e38, np.float32)] for _ in range(3)]
    with pytest.raises(gq.NonFiniteError) as raised:
        allreduce(inputs, key=["a", "b"])
    assert raised.value.key == "b"


@of_both
@pytest.mark.parametrize("text", SCHEMES + EXACT)
@given(seed=st.integers(0, 2**32), size=st.integers(3, 300), changes=st.integers(1, 3))
@examples(30)
def test_spoiled_messages_end_alike_in_both(runtime, text, seed, size, changes):
    """In the same results, or the same type of error."""
    inputs = inputs_of_two_calls(2, [(size, "float32", 0.0)], seed)

    def end(runtime):
        def spoil(source, to, lane, data):
            draws = np.random.default_rng([seed, crc32(data)])
            if lane < FIRST and len(data) > frame.SIZE:
                data = data.copy()
                for at in draws.integers(frame.SIZE, len(data), changes):
                    data[at] = draws.choice([0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1 << draws.integers(8)])
            return data

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalAllreduce, "tap", staticmethod(spoil))
            try:
                return calls(runtime, text, inputs, ["w"])
            except (gq.WireError, gq.NonFiniteError) as error:
                return type(error)

    assert end("native") == end("python")


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("values", ["raw", "float16"])
def test_places_of_a_sum_that_do_not_ascend_are_refused(runtime, values, monkeypatch):
    def swap_two(source, to, lane, data):
        data = data.copy()
        if lane < FIRST and data[frame.SIZE + 4 :][:4].view(np.uint32)[0] >> 30 == 2:  # a sum with places
            first = frame.SIZE + 14
            data[first : first + 4] = np.roll(data[first : first + 4], 2)
        return data

    x = np.zeros(300, np.float32)
    x[[10, 100, 200, 299]] = 1
    monkeypatch.setattr(LocalAllreduce, "tap", staticmethod(swap_two))
    with pytest.raises(gq.WireError, match="ascend"):
        LocalAllreduce(f"ring/topk(k=4, sums=union, values={values})", 2)([x.copy(), x.copy()])


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_chosen_value_that_its_codec_cannot_send_is_named(runtime):
    arrays = [np.ones(40, np.float32) for _ in range(3)]
    arrays[1][7] = 1e6
    with pytest.raises(gq.NonFiniteError) as raised:
        LocalAllreduce("ring/topk(ratio=0.2, sums=union, values=float16)", 3)(arrays)
    assert (raised.value.rank, raised.value.index) == (None, 7)


@of_both
@pytest.mark.parametrize(
    ("schedule", "rank", "hosts", "expected"),
    [
        ("direct", 1, (0, 1, 2), {1}),
        ("ring", 1, (0, 1, 2), {1, 2}),
        ("halving_doubling", 1, (0, 1, 2, 3), {0, 1}),
        ("hierarchical", 1, (0, 0, 2, 2), {1, 3}),
        ("recursive_doubling", 1, (0, 1, 2, 3), set()),  # errors are shared
        ("recursive_doubling", 0, (0, 1, 2), set()),  # what was sent takes the place of the sum
        ("allgather", 1, (0, 1, 2), set()),
    ],
)
def test_chunks_whose_sum_is_formed_in_the_new_residual(runtime, schedule, rank, hosts, expected):
    topology = Topology(hosts)
    assert summed_in_residual(instructions(SCHEDULES[schedule], rank, topology)) == expected


@of_both
@pytest.mark.parametrize(
    "other",
    [
        code.Share(code.Part(0, 0), 0, 0, 2), code.Encode(1, 0, 0, 0, True, True), code.Finish(0),
        code.Decode(code.Part(0, 0), 0, False, False), code.Encode(1, 0, 0, 0, False, False),
        code.Encode(1, 0, 0, 0, False, True, exact=True), code.BeginSum(0, clears=True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", [0, 1, 2])
def test_another_instruction_on_a_chunk_keeps_its_sum_out_of_the_residual(runtime, other, at):
    program = [
        code.BeginSum(0), code.Decode(code.Part(0, 0), 0, True, False), code.Encode(1, 0, 1, 0, False, True),
        code.Drop(0), code.Decode(code.Part(1, 0), 0, False, True),
    ]  # fmt: skip
    assert summed_in_residual(program) == {0}
    program.insert(at, other)
    assert summed_in_residual(program) == set()


@of_both
@every_scheme
def test_they_are_carried_out_in_cpp(runtime, text):
    """Else the two runtimes above would be one."""
    scheme, form = Scheme.parse(text), Form((1000,), "C", "float32")
    plans, processor = Plans(scheme, 0, apart(2), False, 0), LocalAllreduce("raw", 1).processors[0]
    plan = plans.plan(plans.propose(("w", (form,)), 0, 0, False), processor)
    assert plan.native is not None
    assert all(tensor.coder is not None for tensor in plan.tensors)
