"""Buffers on devices under MPI: the bits of the host's, through page-locked memory or given to MPI, alone and mixed.

Devices are serial grids whose streams run late, unless the tests are told to run on a GPU (tests/cuda/devices.py).
"""

import numpy as np
import pytest
from devices import ON_GPU, OnDevice, needs_device, use_devices
from ranks import TIMEOUT, Oracle, bytes_of, carrying, everywhere, inputs, pairs, schemes

import gqallreduce as gq
from gqallreduce.backends.cuda import runtime
from gqallreduce.backends.cuda.awareness import mpi_is_cuda_aware
from gqallreduce.runtime import trials
from gqallreduce.scheduling import model

pytestmark = [pytest.mark.mpi, needs_device]
SHAPE = (21, 60)
HOWS = {"staged": (False, 1), "aware": (True, 1), "mixed": (False, 2)}  # cuda_aware, every how many ranks a device's


@pytest.fixture(autouse=True)
def devices():
    use_devices()
    yield
    runtime.use()


def content(given):
    return given.on_host() if isinstance(given, OnDevice) else given


def compare(comm, scheme, how, shape=SHAPE, dtype="float32", order="C", average=False):
    aware, every = HOWS[how]
    if aware and ON_GPU and not mpi_is_cuda_aware():
        pytest.skip("this MPI takes no pointers to GPU memory")
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, average=average, cuda_aware=aware)
    oracle = Oracle(comm, scheme, average=average)
    for step in range(2):
        arrays = inputs(comm.size, shape, dtype, order, step)
        expected, residual, counted = oracle(arrays)
        mine = OnDevice(arrays[comm.rank]) if comm.rank % every == 0 else arrays[comm.rank]
        assert allreduce(mine, key="w") is mine
        assert bytes_of(content(mine)) == expected
        if allreduce.scheme.feedback:
            assert bytes_of(allreduce.state_dict()["keys"]["w"]["residual"]) == residual
        last = allreduce.stats.last
        assert (last.bytes_sent, last.bytes_received, last.messages, last.selected) == counted
    return allreduce, oracle


@pytest.mark.parametrize("scheme", schemes(True))
def test_every_scheme_gives_the_hosts_bits_beside_ranks_on_the_host(comm, scheme):
    compare(comm, scheme, "mixed")


@pytest.mark.parametrize("how", ["staged", "aware"])
@carrying(pairs(True))
def test_messages_go_through_page_locked_memory_or_are_given_to_mpi(comm, scheme, how):
    compare(comm, scheme, how)


WITHOUT_KERNELS = [
    "direct/qsgd(rounding=nearest)/ef",
    "direct/qsgd(bits=2)/ef",
    "ring/fp8/ef",
    "allgather/natural/ef",
    "direct/thc/ef",
]


@pytest.mark.parametrize("scheme", WITHOUT_KERNELS)
def test_what_has_no_kernel_on_a_device_goes_through_the_host_and_says_so(comm, scheme):
    allreduce, _ = compare(comm, scheme, "mixed")
    assert ("through host memory" in allreduce.stats.last.reason) == (comm.rank % 2 == 0)


@pytest.mark.parametrize("group", [False, True])
def test_what_levels_are_learned_from_is_counted_on_the_host_and_said(comm, group):
    allreduce = gq.Allreduce("direct/alq(updates=1, every=0, samples=1)", comm=comm, timeout=TIMEOUT)
    said = []
    for step in range(4):
        arrays = [OnDevice(inputs(comm.size, SHAPE, step=step)[comm.rank]) for _ in range(1 + group)]
        allreduce(arrays if group else arrays[0], key=["a", "b"] if group else "a")
        said.append(allreduce.stats.last.reason.count("counted in host memory"))
    assert said == [0, 1, 0, 0]


@pytest.mark.parametrize("text", ["terngrad/ef", "thc/ef"])
def test_mpi_adds_integers_in_host_memory(comm, text):
    on_device, on_host = (gq.Allreduce(f"mpi/{text}", comm=comm, timeout=TIMEOUT) for _ in range(2))
    for step in range(2):
        array = inputs(comm.size, SHAPE, step=step)[comm.rank]
        mine = OnDevice(array.copy()) if comm.rank % 2 == 0 else array.copy()
        assert on_device(mine, key="w") is mine
        assert bytes_of(content(mine)) == bytes_of(on_host(array, key="w"))
        states = [each.state_dict()["keys"]["w"]["residual"] for each in (on_device, on_host)]
        assert bytes_of(states[0]) == bytes_of(states[1])
    assert ("MPI adds integers there" in on_device.stats.last.reason) == (comm.rank % 2 == 0)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@carrying(pairs())
def test_other_dtypes_and_averages(comm, scheme, dtype):
    compare(comm, scheme, "mixed", dtype=dtype, order="F", average=True)
    compare(comm, scheme, "mixed", (4, 5, 7, 9), dtype, "0,2,3,1", average=True)


@carrying(pairs(True))
def test_residuals_are_flushed_looked_at_and_saved(comm, scheme):
    allreduce, _ = compare(comm, scheme, "mixed")
    residual = allreduce.memory.processor_of("w").on_host(allreduce.residual("w"))
    assert bytes_of(residual) == bytes_of(allreduce.state_dict()["keys"]["w"]["residual"])
    again = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    again.load_state_dict(allreduce.state_dict())
    norm = np.linalg.norm(residual.astype(np.float64))
    assert allreduce.stats.last.residual_norm == pytest.approx(norm, rel=1e-6)
    home = allreduce.memory.processor_of("w")
    flushed, as_much = home.on_host(allreduce.flush("w")), again.flush("w")
    assert flushed.shape == SHAPE
    assert bytes_of(flushed) == bytes_of(as_much)
    assert len(set(comm.allgather(bytes_of(flushed)))) == 1
    assert not home.on_host(allreduce.residual("w")).any()


@pytest.mark.parametrize("scheme", ["direct/adaptive(pi=4)/ef", "ring/qsgd/ef"])
def test_a_key_may_move_from_the_host_to_a_device_and_back(comm, scheme):
    allreduce, oracle = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT), Oracle(comm, scheme)
    for step, place in enumerate([np.asarray, OnDevice, OnDevice, np.asarray]):
        arrays = inputs(comm.size, SHAPE, step=step)
        expected = oracle(arrays)[0]
        mine = place(arrays[comm.rank])
        allreduce(mine, key="w")
        assert bytes_of(content(mine)) == expected


def test_into_another_buffer(comm):
    arrays = inputs(comm.size, SHAPE)
    expected = Oracle(comm, "direct/onebit/ef")(arrays)[0]
    buf, out = OnDevice(arrays[comm.rank].copy()), OnDevice(np.zeros(SHAPE, np.float32))
    assert gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT)(buf, key="w", out=out) is out
    assert bytes_of(out.on_host()) == expected
    assert bytes_of(buf.on_host()) == bytes_of(arrays[comm.rank])


def test_an_out_elsewhere_is_an_error_on_every_rank(comm):
    allreduce = gq.Allreduce("direct/onebit", comm=comm, timeout=TIMEOUT)
    out = np.zeros(SHAPE, np.float32)
    kind, _ = everywhere(comm, allreduce, OnDevice(out.copy()), out=out)
    assert kind in (ValueError, gq.MismatchError)


@pytest.mark.parametrize("scheme", ["auto/qsgd", "auto/onebit/ef"])
def test_auto_whatever_rank_0_chooses(comm, scheme):
    """A rank on the host may choose MPI's own allreduce; one on a device does not, but takes part in it."""
    for where in (0, 1):
        allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
        arrays = inputs(comm.size, SHAPE)
        mine = OnDevice(arrays[comm.rank]) if comm.rank % 2 == where else arrays[comm.rank]
        allreduce(mine, key="w")
        total = np.sum(inputs(comm.size, SHAPE), axis=0)
        assert np.linalg.norm(content(mine) - total) <= np.linalg.norm(total)
        assert len(set(comm.allgather(bytes_of(content(mine))))) == 1
        if where == 0:
            assert not allreduce.stats.last.dense


@pytest.mark.parametrize("fastest", ["dense", "direct", "recursive_doubling/raw"])
def test_what_auto_has_found_is_kept_when_a_buffer_of_some_ranks_moves(comm, monkeypatch, fastest):
    """To a device and back, until all is tried again: by then as rank 0's buffer lies."""
    note = trials.Trials.note
    monkeypatch.setattr(trials.Trials, "note", lambda self, at, _: note(self, at, 2 - (self._names[at[0]] == fastest)))
    monkeypatch.setattr(model, "candidates", lambda *_: ["direct", "dense", "recursive_doubling/raw"])
    monkeypatch.setattr(trials, "AGAIN_LEAST", 20)
    monkeypatch.setattr(trials, "SHARE", 1e9)
    allreduce, given, got, said = gq.Allreduce("auto/onebit/ef", comm=comm, timeout=TIMEOUT), 0, 0.0, []
    for number in range(60):
        arrays = inputs(comm.size, SHAPE, step=number)
        moved = number >= 14 and (number // 3 + comm.rank) % 3 == 0
        given = given + np.sum(arrays, axis=0, dtype=np.float64)
        mine = OnDevice(arrays[comm.rank]) if moved else arrays[comm.rank]
        got = got + content(allreduce(mine, key="w"))
        said.append((allreduce.stats.last.scheme, allreduce.stats.last.reason.partition(";")[0]))
        assert len(set(comm.allgather((bytes_of(content(mine)), *said[-1])))) == 1
    if comm.size > 1:
        assert sum(why.startswith("measured") for _, why in said) >= 35
        assert sum(why == "a try" for _, why in said) >= 5
    left = np.sum(comm.allgather(allreduce.state_dict()["keys"]["w"]["residual"].astype(np.float64)), axis=0)
    assert np.allclose(got + left.reshape(SHAPE), given, rtol=0, atol=1e-4 * np.abs(given).max())


def test_a_device_without_room_fails_everywhere_and_nothing_is_lost(comm):
    allreduce, oracle = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT), Oracle(comm, "direct/onebit/ef")
    first = inputs(comm.size, SHAPE)
    oracle(first)
    allreduce(OnDevice(first[comm.rank]), key="w")
    before = bytes_of(allreduce.state_dict()["keys"]["w"]["residual"])
    device = runtime.runtime(0)
    if not hasattr(device, "memory_left"):
        pytest.skip("a real device cannot be told how much memory it has")
    device.memory_left = 1000 if comm.rank == comm.size - 1 else None
    with pytest.raises(gq.Error, match=r"too many|failed in the middle" if comm.size > 1 else "too many"):
        allreduce(OnDevice(np.zeros((300, 300), np.float32)), key="v")
    device.memory_left = None
    assert bytes_of(allreduce.state_dict()["keys"]["w"]["residual"]) == before
    if comm.size > 1:  # a call was given up half-way
        with pytest.raises(gq.Error, match="cannot be used"):
            allreduce(OnDevice(np.zeros(SHAPE, np.float32)), key="w")


def test_a_fault_of_one_device_is_named_there_and_known_everywhere(comm):
    if not hasattr(runtime.runtime(0), "fail_at"):
        pytest.skip("a real device cannot be told to fail")
    last = comm.rank == comm.size - 1
    runtime.runtime(0).fail_at = 2 if last else None
    allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT)
    with pytest.raises(gq.Error, match=r"key 'w' \(last kernel: \w+\)" if last else "failed in the middle"):
        allreduce(OnDevice(np.zeros(SHAPE, np.float32)), key="w")


def test_without_cupy_the_error_says_what_to_install(comm):
    runtime.use()
    allreduce = gq.Allreduce("direct/onebit", comm=comm, timeout=TIMEOUT)
    try:
        import cupy  # noqa: F401
    except ImportError:
        with pytest.raises(gq.Error, match=r"need CuPy: pip install 'gqallreduce\[cuda13\]'"):
            allreduce(OnDevice(np.zeros(SHAPE, np.float32)), key="w")
    else:
        pytest.skip("CuPy is installed")


# recursive_doubling shares what ranks lose alike: of a float64 nothing, whatever its place in a group
@carrying(sorted({*pairs(True), "recursive_doubling/raw/ef"}))
def test_a_group_has_the_hosts_bits(comm, scheme):
    """Those of codecs whose messages have any length pass through the host, and say so."""
    shapes = [((31, 7), "float64"), ((20, 30), "float32"), ((7,), "float32"), ((0,), "float32"), ((5, 5), "float16")]
    shapes.append(((3000,), "float32"))
    keys = [str(number) for number in range(len(shapes))]
    ours, theirs = (gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, cuda_aware=False) for _ in range(2))
    for step in range(3):
        expected = [inputs(comm.size, *form, step=10 * step + n)[comm.rank] for n, form in enumerate(shapes)]
        mine = [OnDevice(array.copy()) if comm.rank % 2 == 0 else array.copy() for array in expected]
        theirs(expected, key=keys)
        if step == 1:
            for array, key in zip(mine, keys, strict=True):
                ours(array, key=key)
        else:
            assert ours(mine, key=keys) is mine
            codec, through_host = ours.scheme.codec, "through host memory" in ours.stats.last.reason
            assert through_host == (comm.rank % 2 == 0 and (codec.host_only or not codec.fixed_size))
        assert [bytes_of(content(array)) for array in mine] == [bytes_of(array) for array in expected]
        for key in keys if ours.scheme.feedback else ():
            residual = ours.memory.processor_of(key).on_host(ours.residual(key))
            assert bytes_of(residual) == bytes_of(theirs.residual(key))
    mine[4] = OnDevice(expected[4])
    mine[1] = expected[1]
    kind, _ = everywhere(comm, ours, mine, key=keys)
    assert kind is ValueError


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    "scheme", ["direct/onebit/ef", "ring/qsgd(bits=4)", "direct/adaptive(pi=8)/ef", "direct/eden/ef"]
)
def test_halves_in_turn_are_the_allreduce_of_the_host(comm, scheme, how):
    aware, every = HOWS[how]
    if aware and ON_GPU and not mpi_is_cuda_aware():
        pytest.skip("this MPI takes no pointers to GPU memory")
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, cuda_aware=aware)
    oracle = Oracle(comm, scheme)
    for step in range(3):
        arrays = inputs(comm.size, (1300,), "float32", "C", step)
        expected, residual, _ = oracle(arrays)
        mine = OnDevice(arrays[comm.rank]) if comm.rank % every == 0 else arrays[comm.rank]
        allreduce.reduce_scatter(mine, key="w")
        assert allreduce.allgather(None, out=mine, key="w") is mine
        assert bytes_of(content(mine)) == expected
        if allreduce.scheme.feedback:
            assert bytes_of(allreduce.state_dict()["keys"]["w"]["residual"]) == residual
