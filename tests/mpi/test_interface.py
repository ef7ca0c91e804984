"""The public interface under MPI: what is returned, kept, found again and refused."""

import functools

import mpi4py
import numpy as np
import pytest
from mpi4py import MPI
from ranks import TIMEOUT, bytes_of, errors, everywhere, works

import gqallreduce as gq
from gqallreduce import __main__, _kernels
from gqallreduce.registry import CODECS
from gqallreduce.transport import agreement as module
from gqallreduce.transport import requests

pytestmark = pytest.mark.mpi


@pytest.fixture
def own(comm):
    """A communicator of the test's own, so that nothing is cached on it yet."""
    duplicate = comm.Dup()
    yield duplicate
    comm.Barrier()
    duplicate.Free()


def test_the_function_returns_the_buffer_and_the_sum(own):
    buf = np.full((3, 4), 1.0 + own.rank, np.float32)
    assert gq.quantized_allreduce(buf, "raw", comm=own) is buf
    assert (buf == own.size * (own.size + 1) / 2).all()
    out = np.zeros_like(buf)
    assert gq.quantized_allreduce(buf, gq.Scheme.parse("ring/raw"), comm=own, average=True, out=out) is out
    assert (out == buf).all()


def test_the_default_communicator_is_the_world(comm):
    buf = np.ones(3)
    gq.quantized_allreduce(buf, "ring/raw")
    assert (buf == comm.size).all()
    assert gq.cached(scheme="ring/raw") is gq.cached(comm, "ring/raw") is not None


def test_the_object_is_cached_by_communicator_scheme_and_average(own):
    assert gq.cached(own, "qsgd/ef") is None
    gq.quantized_allreduce(np.ones(5, np.float32), "qsgd/ef", key="w", comm=own)
    found = gq.cached(own, "qsgd/ef")
    assert found is gq.cached(own, "qsgd(bits=4)/ef") is gq.cached(own, gq.Scheme.parse("qsgd / ef"))
    assert found.stats.total.scheme == found.stats.last.scheme
    gq.quantized_allreduce(np.ones(5, np.float32), "qsgd(bits=4)/ef", key="w", comm=own)
    assert gq.cached(own, "qsgd/ef") is found
    assert found.state_dict()["keys"]["w"]["step"] == 2
    assert gq.cached(own, "qsgd/ef", average=True) is gq.cached(own, "ring/qsgd/ef") is None
    assert found.residual("w").shape == (5,)


def test_a_look_for_the_object_of_no_scheme_is_refused(own):
    for _ in range(2):  # also before there is any object
        with pytest.raises(TypeError, match=r"scheme: got None, expected text such as"):
            gq.cached(own)
        gq.quantized_allreduce(np.ones(5, np.float32), "ring/raw", comm=own)


def test_a_sum_and_an_average_by_one_scheme_are_two_objects(own):
    for average in (False, True, False):
        buf = np.full(5, 1.0 + own.rank, np.float32)
        gq.quantized_allreduce(buf, "ring/raw", comm=own, average=average)
        total = own.size * (own.size + 1) / 2
        np.testing.assert_allclose(buf, total / own.size if average else total, rtol=1e-6)
    assert gq.cached(own, "ring/raw") is not gq.cached(own, "ring/raw", average=True) is not None


def test_a_duplicate_of_the_communicator_knows_nothing(own):
    gq.quantized_allreduce(np.ones(5, np.float32), "ring/raw", comm=own)
    duplicate = own.Dup()
    assert gq.cached(duplicate, "ring/raw") is None
    gq.quantized_allreduce(np.ones(5, np.float32), "ring/raw", comm=duplicate)
    assert gq.cached(duplicate, "ring/raw") is not gq.cached(own, "ring/raw")
    duplicate.Free()


def test_parts_of_a_communicator_sum_apart(comm):
    part = comm.Split(comm.rank % 2, -comm.rank)
    buf = np.full(100, comm.rank, np.float32)
    allreduce = gq.Allreduce("direct/raw", comm=part, timeout=TIMEOUT)
    assert (allreduce.rank, allreduce.size) == (part.rank, part.size)
    allreduce(buf)
    assert (buf == sum(range(comm.rank % 2, comm.size, 2))).all()
    works(comm, gq.Allreduce("ring/qsgd", comm=comm, timeout=TIMEOUT))
    part.Free()


def test_a_rank_alone_quantizes_too(comm):
    alone = comm.Split(comm.rank)
    buf = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    before, allreduce = buf.copy(), gq.Allreduce("qsgd(bits=2)/ef", comm=alone)
    allreduce(buf, key="w")
    assert bytes_of(buf) != bytes_of(before)
    np.testing.assert_allclose(buf + allreduce.residual("w"), before, atol=1e-6)
    last = allreduce.stats.last
    assert (last.bytes_sent, last.bytes_received, last.messages, last.ratio) == (0, 0, 0, 1.0)
    alone.Free()


def test_two_objects_take_turns(comm):
    first = gq.Allreduce("ring/qsgd(bits=2)/ef", comm=comm, timeout=TIMEOUT)
    second = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT, average=True)
    alone = [gq.Allreduce("ring/qsgd(bits=2)/ef", comm=comm), gq.Allreduce("direct/onebit/ef", comm=comm, average=True)]
    draws = np.random.default_rng(comm.rank).standard_normal((2, 3, 500)).astype(np.float32)
    expected = [[each.copy() for each in draws[which]] for which in (0, 1)]
    for allreduce, arrays in zip(alone, expected, strict=True):
        for array in arrays:
            allreduce(array, key="w")
    for step in range(3):
        assert bytes_of(first(draws[0, step], key="w")) == bytes_of(expected[0][step])
        assert bytes_of(second(draws[1, step], key="w")) == bytes_of(expected[1][step])


def test_the_key_none_takes_every_shape(comm):
    allreduce = gq.Allreduce("qsgd", comm=comm, timeout=TIMEOUT)
    for dtype, shape in [("f4", 10), ("f4", (2, 5)), ("f8", 10), ("f4", 10), ("f2", ()), ("f4", 0)]:
        buf = np.ones(shape, dtype)
        allreduce(buf)
        assert len(set(comm.allgather(bytes_of(buf)))) == 1
    assert allreduce.state_dict()["keys"] == {None: {"step": 6}}


@pytest.mark.parametrize(
    "other",
    [np.ones((5, 2), "f4"), np.ones((2, 5), "f8"), np.ones((2, 5), "f4", order="F")],
    ids=["shape", "dtype", "order"],
)
def test_a_key_keeps_its_form(comm, other):
    allreduce = gq.Allreduce("qsgd", comm=comm, timeout=TIMEOUT)
    allreduce(np.ones((2, 5), np.float32), key="w")
    kind, _ = everywhere(comm, allreduce, other.copy(order="K"), key="w")
    assert kind is ValueError
    works(comm, gq.Allreduce("qsgd", comm=comm, timeout=TIMEOUT))


@pytest.mark.parametrize(
    ("array", "options", "expected"),
    [
        (np.ones(3, np.float32), {}, ValueError),  # /ef without a key
        (np.ones(3, np.float32), {"key": 7}, TypeError),
        (np.ones(3, np.complex64), {"key": "w"}, TypeError),
        (np.ones(3, ">f4"), {"key": "w"}, TypeError),
        ([1.0, 2.0], {"key": "w"}, TypeError),
        (np.float32(1.5), {"key": "w"}, TypeError),
        (np.ma.masked_array(np.ones(3, np.float32), [1, 0, 0]), {"key": "w"}, TypeError),
        (np.ones(3, np.float32), {"key": "w", "out": np.ma.masked_array(np.ones(3, np.float32))}, TypeError),
        (np.broadcast_to(np.float32(1), ()), {"key": "w"}, ValueError),  # read-only
        (np.ones((9, 9, 9), np.float32)[::2, ::2], {"key": "w"}, ValueError),
        (np.ones(3, np.float32), {"key": "w", "out": np.ones(3)}, ValueError),
    ],
)
def test_invalid_arguments_of_every_rank(comm, array, options, expected):
    allreduce = gq.Allreduce("qsgd/ef", comm=comm, timeout=TIMEOUT)
    assert everywhere(comm, allreduce, array, **options)[0] is expected
    works(comm, allreduce)


def test_a_read_only_buffer_is_summed_into_out(comm):
    buf, out = np.broadcast_to(np.float32(comm.rank), ()), np.zeros((), np.float32)
    assert gq.Allreduce("ring/raw", comm=comm, timeout=TIMEOUT)(buf, out=out) is out
    assert out == sum(range(comm.size))


def test_out_may_not_overlap_partly(comm):
    whole = np.ones(12, np.float32)
    allreduce = gq.Allreduce("raw", comm=comm, timeout=TIMEOUT)
    assert everywhere(comm, allreduce, whole[:8], out=whole[4:])[0] is ValueError


def test_out_may_be_other_columns_of_the_same_matrix(comm):
    matrix = np.full((4, 10), comm.rank, np.float32)
    left, right = matrix[:, :5], matrix[:, 5:]
    assert gq.Allreduce("ring/raw", comm=comm, timeout=TIMEOUT)(left, out=right) is right
    assert (right == sum(range(comm.size))).all()
    assert (left == comm.rank).all()


def test_what_is_written_wrongly_fails_at_construction(comm):
    for options in ({"check": "never"}, {"timeout": 0}, {"verify": -1}, {"verify": "often"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            gq.Allreduce("raw", comm=comm, **options)
    with pytest.raises(ValueError, match="qsgd"):
        gq.Allreduce("qsdg", comm=comm)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_ratio_is_that_of_a_dense_ring_to_the_bytes_sent(comm, dtype):
    """Our exact ring sends as much as the dense one, and a header per message."""
    allreduce = gq.Allreduce("ring/raw", comm=comm, timeout=TIMEOUT)
    buf = np.ones(100 * comm.size, dtype)
    allreduce(buf)
    last, dense = allreduce.stats.last, 2 * (comm.size - 1) * 100 * buf.itemsize
    assert last.bytes_sent == dense + 32 * last.messages
    assert last.ratio == pytest.approx(dense / last.bytes_sent)
    assert allreduce.stats.total.ratio == pytest.approx(last.ratio)


@pytest.mark.parametrize("coding", ["fixed", "golomb"])
def test_every_value_that_a_sparse_codec_encodes_is_counted_as_selected(comm, coding):
    """On a ring each rank encodes every chunk once; with pi=1 it sends all values but zeros."""
    allreduce = gq.Allreduce(f"ring/adaptive(pi=1, coding={coding})", comm=comm, timeout=TIMEOUT)
    values = [np.random.default_rng(comm.rank).uniform(1, 2, n * comm.size).astype(np.float32) for n in (100, 7)]
    allreduce(values[0])
    assert allreduce.stats.last.selected == 100 * comm.size
    allreduce(values, key=["a", "b"])
    assert allreduce.stats.last.selected == 107 * comm.size


def test_totals_are_the_sums_over_all_calls_until_they_are_reset(comm):
    allreduce = gq.Allreduce("ring/adaptive(pi=2)/ef", comm=comm, timeout=TIMEOUT)
    assert allreduce.stats.last is None
    calls = []
    for key in "aba":
        allreduce(np.random.default_rng(comm.rank).standard_normal(500).astype(np.float32), key=key)
        calls.append(allreduce.stats.last)
    for name in ("bytes_sent", "bytes_received", "messages", "selected", "saturated"):
        assert getattr(allreduce.stats.total, name) == sum(getattr(each, name) for each in calls)
    for name in ("encode", "decode", "wait", "total"):
        assert getattr(allreduce.stats.total, name) == pytest.approx(sum(getattr(each, name) for each in calls))
    norms = [float(np.linalg.norm(allreduce.residual(key))) for key in "ab"]
    assert calls[2].residual_norm == pytest.approx(norms[0])
    assert allreduce.stats.total.residual_norm == pytest.approx(np.hypot(*norms))
    allreduce.stats.reset()
    assert (allreduce.stats.last, allreduce.stats.total.messages) == (None, 0)


# --- verify ---


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("scheme", ["qsgd/ef", "ring/raw", "auto/onebit/ef"])
def test_replicas_that_differ_are_found_at_the_nth_call(comm, scheme, monkeypatch):
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, verify=3)
    rng = np.random.default_rng(comm.rank)
    for _ in range(2):
        allreduce(rng.standard_normal(50).astype(np.float32), key="w")
    before = {key: bytes_of(value) for key, value in allreduce.state_dict()["keys"]["w"].items() if key == "residual"}
    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr(module, "checksum", lambda data: 1)
        found = errors(comm, allreduce, rng.standard_normal(50).astype(np.float32), key="w")
    assert {each and each[0] for each in found} == {gq.ReplicaError}
    entry = allreduce.state_dict()["keys"]["w"]
    assert entry["step"] == 2
    assert {key: bytes_of(value) for key, value in entry.items() if key == "residual"} == before
    for _ in range(4):
        allreduce(np.ones(50, np.float32), key="w")


def test_replicas_that_agree_pass(comm):
    allreduce = gq.Allreduce("adaptive/ef", comm=comm, timeout=TIMEOUT, verify=1)
    for order in "CF":
        whole = np.random.default_rng(comm.rank).standard_normal((30, 50)).astype(np.float32, order=order)
        allreduce(whole[2:20, 1:40], key=order)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("scheme", "options"), [("onebitt", {}), ("direct/raw", {"average": "yes"}), ("direct/raw", {"key": 5})]
)
def test_invalid_arguments_of_the_function_are_told_to_the_others(own, scheme, options, first):
    """Those that are not an object's arguments too, and in the first call on a communicator."""
    if not first:
        gq.quantized_allreduce(np.ones(5, np.float32), "direct/raw", comm=own)
    wrong = own.rank == own.size - 1
    call = functools.partial(gq.quantized_allreduce, np.ones(5, np.float32), comm=own)
    given = {"scheme": scheme, **options} if wrong else {"scheme": "direct/raw"}
    found = errors(own, call, **given)
    assert issubclass(found[-1][0], (ValueError, TypeError))
    assert {each and each[0] for each in found[:-1]} == {gq.MismatchError}, found
    assert {each[1]["field"] for each in found[:-1]} == {"arguments"}
    array = np.ones(5, np.float32)
    gq.quantized_allreduce(array, "ring/raw", comm=own)
    assert (array == own.size).all()


# --- the runtime in C++ ---


def test_an_mpi_whose_functions_cannot_be_found(comm, monkeypatch):
    """Then Python carries calls out, and statistics say so."""
    found = []
    for hidden in (False, True):
        with monkeypatch.context() as patch:
            if hidden:
                patch.setattr(requests, "native_transport", lambda comm: None)
            allreduce = gq.Allreduce("direct/qsgd(bits=4)/ef", comm=comm.Dup(), timeout=TIMEOUT)
        array = np.random.default_rng(comm.rank).standard_normal(5000).astype(np.float32)
        allreduce(array, key="w")
        found.append((array.tobytes(), allreduce.residual("w").tobytes(), allreduce.stats.last.bytes_sent))
        assert ("functions of this MPI cannot be looked up" in allreduce.stats.last.reason) == hidden
    assert found[0] == found[1]


@pytest.mark.parametrize("reason", ["GQALLREDUCE_RUNTIME=python", "this codec has no kernels in C++"])
def test_statistics_say_why_python_carried_a_call_out(comm, monkeypatch, reason):
    """Also of a codec that is written in Python."""
    monkeypatch.delenv("GQALLREDUCE_RUNTIME", raising=False)
    if "=" in reason:
        monkeypatch.setenv(*reason.split("="))
    else:
        monkeypatch.setattr(CODECS["onebit"], "coder", lambda self: None)
    allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT)
    for step in range(3):
        allreduce(np.ones(5000, np.float32), key="w")
        assert allreduce.stats.last.reason == f"as written; carried out by Python: {reason}", step


def said_by_info(capsys, name):
    """What is in the rows of this name."""
    assert __main__.main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.removeprefix(name).strip() for line in lines if line.startswith(f"{name} ")]


@pytest.mark.parametrize(
    ("variable", "hidden", "said"),
    [
        (None, False, "C++"),
        (None, True, "Python: functions of this MPI cannot be looked up"),
        ("python", False, "Python"),
        ("fortran", False, "GQALLREDUCE_RUNTIME='fortran', expected native or python"),
    ],
    ids=["usual", "functions hidden", "Python wanted", "variable wrong"],
)
def test_info_says_which_runtime_runs_and_why(comm, monkeypatch, capsys, variable, hidden, said):
    def not_found(*arguments):
        raise LookupError("MPI_Isend")

    monkeypatch.delenv("GQALLREDUCE_RUNTIME", raising=False)
    if variable:
        monkeypatch.setenv("GQALLREDUCE_RUNTIME", variable)
    if hidden:
        monkeypatch.setattr(_kernels, "MpiTransport", not_found)
    assert said_by_info(capsys, "runtime") == ([said] if comm.rank == 0 else [])


def test_how_many_threads_may_call_the_mpi_stays_as_it_was(comm):
    """Also where its tools interface has been asked, which could change that."""
    works(comm, gq.Allreduce("raw", comm=comm))
    levels = {"single": 0, "funneled": 1, "serialized": 2, "multiple": 3}
    assert MPI.Query_thread() == levels[mpi4py.rc.thread_level]


@pytest.mark.parametrize(
    ("variable", "level", "said"),
    [
        (None, MPI.THREAD_MULTIPLE, "by a thread between calls"),
        (
            None,
            MPI.THREAD_FUNNELED,
            "in calls only: this MPI may not be called by several threads (MPI.Query_thread())",
        ),
        ("calls", MPI.THREAD_MULTIPLE, "in calls only: GQALLREDUCE_PROGRESS=calls"),
        ("always", MPI.THREAD_MULTIPLE, "GQALLREDUCE_PROGRESS='always', expected thread or calls"),
    ],
)
def test_info_says_when_calls_advance(comm, monkeypatch, capsys, variable, level, said):
    monkeypatch.delenv("GQALLREDUCE_RUNTIME", raising=False)
    monkeypatch.delenv("GQALLREDUCE_PROGRESS", raising=False)
    if variable:
        monkeypatch.setenv("GQALLREDUCE_PROGRESS", variable)
    monkeypatch.setattr(MPI, "Query_thread", lambda: level)
    assert said_by_info(capsys, "progress") == ([said] if comm.rank == 0 else [])
