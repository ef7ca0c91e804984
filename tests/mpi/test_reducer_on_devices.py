"""A model whose gradients lie on devices: the bits of the same steps on the host, with all options of a Reducer.

Devices are serial grids whose streams run late, unless the tests are told to run on a GPU (tests/cuda/devices.py).
"""

import numpy as np
import pytest
from devices import ON_GPU, OnDevice, needs_device, use_devices
from ranks import TIMEOUT, bytes_of

import gqallreduce as gq
from gqallreduce.backends.cuda import runtime

pytestmark = [pytest.mark.mpi, needs_device]
RULES = "*.bias=ring/raw; a.*=direct/onebit/ef; b.*=direct/adaptive(pi=8)/ef; *=direct/qsgd(bits=4)"
SHAPES = {
    "a.weight": (40, 30), "a.bias": (30,), "b.weight": (64, 50), "b.bias": (), "c.weight": (3, 4, 5), "d": (0, 4),
}  # fmt: skip
OPTIONS = [
    {"clip": 3.0},
    {"momentum": 0.9},
    {"momentum_correction": 0.9, "average": False},
    {"clip": 3.0, "momentum": 0.5, "warmup": 2, "compare_every": 2},
]


@pytest.fixture(autouse=True)
def devices():
    use_devices()
    yield
    runtime.use()


def gradients(comm, step, order="C"):
    random = np.random.default_rng(100 * step + comm.rank)
    return {name: np.array(random.standard_normal(shape), np.float32, order=order) for name, shape in SHAPES.items()}


def on_device(arrays, device=0):
    return {name: OnDevice(each.copy(order="K"), device) for name, each in arrays.items()}


def content(gradients):
    return b"".join(bytes_of(each.on_host() if isinstance(each, OnDevice) else each) for each in gradients.values())


def step(reducer, given, one_by_one):
    if one_by_one:
        for name in reversed(given):
            reducer.start(name, given[name])
        reducer.wait()
    else:
        reducer(given)


def require_equal_states(one, other):
    for text, scheme in one["schemes"].items():
        for key, state in scheme["keys"].items():
            if "residual" in state:
                assert bytes_of(state["residual"]) == bytes_of(other["schemes"][text]["keys"][key]["residual"])
    momenta = [each["momentum"]["kept"] for each in (one, other)]
    assert momenta[0].keys() == momenta[1].keys()
    assert all(bytes_of(each) == bytes_of(momenta[1][name]) for name, each in momenta[0].items())


@pytest.mark.parametrize("bucket", ["1 KiB", "1 MiB"])
@pytest.mark.parametrize("options", [{}, *OPTIONS], ids=str)
def test_steps_have_the_bits_of_the_hosts(comm, options, bucket):
    """Every other rank has its gradients on the host."""
    order = {"1 KiB": "F", "1 MiB": "C"}[bucket]
    beside, reducer = (gq.Reducer(RULES, comm=comm, timeout=TIMEOUT, bucket=bucket, **options) for _ in range(2))
    for number in range(4):
        expected = gradients(comm, number, order)
        copies = {name: each.copy(order="K") for name, each in expected.items()}
        given = on_device(copies) if comm.rank % 2 == 0 else copies
        step(beside, expected, number % 2)
        step(reducer, given, number % 2)
        assert content(given) == content(expected)
        found, expected = ({name: each.error for name, each in of.stats.tensors.items()} for of in (reducer, beside))
        assert repr(found) == repr(expected)
    require_equal_states(reducer.state_dict(), beside.state_dict())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_state_goes_on_wherever_the_gradients_lie_then(comm, options):
    """From the host to a device and back, in units that have changed."""
    beside, first = (gq.Reducer(RULES, comm=comm, timeout=TIMEOUT, **options) for _ in range(2))
    for number in range(6):
        expected = gradients(comm, number)
        given = on_device(expected) if number in (2, 3) else gradients(comm, number)
        if number in (2, 4):
            first.scale_memory(0.5, momentum=True)
            beside.scale_memory(0.5, momentum=True)
            again = gq.Reducer(RULES, comm=comm, timeout=TIMEOUT, **options)
            again.load_state_dict(first.state_dict())
            first.close()
            first = again
        step(beside, expected, False)
        step(first, given, True)
        assert content(given) == content(expected)


@pytest.mark.skipif(ON_GPU, reason="needs two devices")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_model_on_two_devices_whose_tensors_change_places(comm, options):
    """Momenta lie where the gradients of the last step did."""
    beside, reducer = (gq.Reducer(RULES, comm=comm, timeout=TIMEOUT, **options) for _ in range(2))
    for number in range(5):
        expected, first = gradients(comm, number), number // 2 % 2
        given = on_device(expected, first)
        for name in ("a.weight", "c.weight"):
            given[name] = OnDevice(expected[name].copy(), 1 - first)
        step(beside, expected, True)
        step(reducer, given, True)
        assert content(given) == content(expected)
        places = {name: each.processor.runtime.device for name, each in reducer.contributions._kept.items()}
        assert all(device == given[name].device for name, device in places.items())
    require_equal_states(reducer.state_dict(), beside.state_dict())


@pytest.mark.skipif(ON_GPU, reason="needs a stream that runs late")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_that_the_stream_has_yet_to_make(comm, options):
    beside, reducer = (gq.Reducer(RULES, comm=comm, timeout=TIMEOUT, **options) for _ in range(2))
    for number in range(3):
        expected, given = gradients(comm, number), on_device(gradients(comm, number + 10))
        stream = runtime.runtime(0)
        for name, each in given.items():
            stream.copy(each.array, expected[name].copy())
        step(beside, expected, True)
        step(reducer, given, False)
        assert content(given) == content(expected)


@pytest.mark.skipif(ON_GPU, reason="needs a device whose memory can be bounded")
@pytest.mark.parametrize("options", [{}, {"clip": 2.0, "momentum": 0.9, "compare_every": 1}], ids=str)
def test_a_device_without_memory_ends_the_step_on_all_ranks_and_changes_nothing(comm, options):
    """On the last rank, at one allocation after the other. If that was not in the middle of a call the next step can be
    made; else none, on all ranks."""
    failed = 0
    for allowed in (0, 1, 2, 4, 7, 11, 16, 22, 30, 40, 60):
        use_devices()  # which have given no memory yet
        beside, reducer = (gq.Reducer(RULES, comm=comm, timeout=TIMEOUT, **options) for _ in range(2))
        reducer.register(on_device(gradients(comm, 0)))
        before, given, device = reducer.state_dict(), on_device(gradients(comm, 1)), runtime.runtime(0)
        left = [allowed if comm.rank == comm.size - 1 else 10**6]
        device.empty = bounded(device.empty, left)
        problem = None
        try:
            for name in reversed(given):
                reducer.start(name, given[name])
            reducer.wait()
        except gq.Error as error:
            problem = error
        left[0] = 10**6
        ended = comm.allgather(problem is not None)
        assert len(set(ended)) == 1
        if problem is not None:
            failed += 1
            require_equal_states(reducer.state_dict(), before)
            assert reducer.stats.steps == 0
        else:
            step(beside, gradients(comm, 1), True)
        expected, given = gradients(comm, 2), on_device(gradients(comm, 2))
        unusable = comm.allgather(any(each.unusable for each in reducer.allreduces.values()))
        assert len(set(unusable)) == 1
        if unusable[0]:
            with pytest.raises(gq.Error, match="cannot be used any more"):
                step(reducer, given, True)
        else:
            step(beside, expected, True)
            step(reducer, given, True)
            assert content(given) == content(expected)
        reducer.close()
        beside.close()
    assert failed >= 2


def bounded(allocate, left):
    """The same for so many calls, a list of one number, then an error."""

    def allocated(nbytes):
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError(f"{nbytes} bytes are too many")
        return allocate(nbytes)

    return allocated


def test_gradients_into_others_and_with_gaps(comm):
    options = {"clip": 2.0, "momentum": 0.9}
    beside, reducer = (gq.Reducer(RULES, comm=comm, timeout=TIMEOUT, **options) for _ in range(2))
    for number in range(3):
        given = gradients(comm, number)
        matrices = {name: each for name, each in given.items() if each.ndim == 2}
        wide = {name: np.zeros((len(each), 2 * each.shape[1]), np.float32) for name, each in matrices.items()}
        cut = {name: wide[name][:, : each.shape[1]] for name, each in matrices.items()}
        for name, each in matrices.items():
            cut[name][:] = each
        sources = {**on_device(given), **{name: OnDevice(each) for name, each in cut.items()}}
        targets = on_device({name: np.zeros_like(each) for name, each in given.items()})
        for name, each in sources.items():
            reducer.start(name, each, out=None if name in cut else targets[name])
        reducer.wait()
        step(beside, given, True)
        found = {name: sources[name] if name in cut else targets[name] for name in given}
        assert content(found) == content(given)


def test_residuals_that_are_flushed_lie_on_the_device(comm):
    beside, reducer = (gq.Reducer(RULES, comm=comm, timeout=TIMEOUT) for _ in range(2))
    given = gradients(comm, 0)
    step(reducer, on_device(given), False)
    step(beside, given, False)
    expected, found = beside.flush(), reducer.flush()
    assert list(found) == list(expected) == ["a.weight", "b.weight"]
    for name, each in found.items():
        scheme = reducer.allreduces[reducer.schemes[name]]
        assert bytes_of(scheme.memory.processor_of(name).on_host(each)) == bytes_of(expected[name])


@pytest.mark.parametrize("options", [{}, {"clip": 1.0, "momentum": 0.9}], ids=str)
@pytest.mark.parametrize("how", ["discard", "wrong form", "not finite"])
def test_a_rank_that_leaves_a_step_is_told_and_the_next_one_can_be_made(comm, options, how):
    beside, reducer = (gq.Reducer(RULES, comm=comm, timeout=TIMEOUT, bucket="1 KiB", **options) for _ in range(2))
    step(reducer, on_device(gradients(comm, 0)), True)
    step(beside, gradients(comm, 0), True)
    given = gradients(comm, 1)
    last = comm.rank == comm.size - 1
    if how == "not finite":
        if last:
            given["b.weight"][5, 7] = np.nan
        with pytest.raises(gq.NonFiniteError) as caught:
            step(reducer, on_device(given), True)
        assert (caught.value.rank, caught.value.key) == (comm.size - 1, "b.weight")
    else:
        given = on_device(given)
        reducer.start("c.weight", given.pop("c.weight"))
        if last and how == "discard":
            reducer.discard()
        elif last:
            with pytest.raises(ValueError, match="got shape, order, dtype"):
                reducer.start("b.weight", OnDevice(np.zeros(3, np.float32)))
        else:
            with pytest.raises(gq.MismatchError):
                step(reducer, given, True)
    expected, given = gradients(comm, 2), on_device(gradients(comm, 2))
    step(beside, expected, True)
    step(reducer, given, True)
    assert content(given) == content(expected)


def test_what_is_not_started_must_be_given_as_zeros(comm):
    reducer = gq.Reducer("*=direct/onebit/ef", comm=comm, timeout=TIMEOUT)
    step(reducer, on_device(gradients(comm, 0)), True)
    given = on_device(gradients(comm, 1))
    reducer.start("a.weight", given["a.weight"])
    with pytest.raises(ValueError, match="was not started; give zeros where there is no gradient"):
        reducer.wait()
    step(reducer, on_device(gradients(comm, 2)), True)


@pytest.mark.parametrize("options", [{"clip": 1.0}, {"momentum": 0.5}], ids=str)
def test_gradients_that_change_into_what_is_refused(comm, options):
    """Registered in host memory; in a step another dtype's memory, or `out` elsewhere."""
    reducer = gq.Reducer("raw", comm=comm, timeout=TIMEOUT, **options)
    reducer.register({"t": np.zeros(4)})
    with pytest.raises(ValueError, match="got float64 on CUDA device 0, expected float32"):
        reducer.start("t", OnDevice(np.ones(4)))
    other = gq.Reducer("raw", comm=comm, timeout=TIMEOUT, **options)
    other.register({"t": np.zeros(4, np.float32)})
    with pytest.raises(ValueError, match="out is in host memory, expected on CUDA device 0 as the gradient"):
        other.start("t", OnDevice(np.ones(4, np.float32)), out=np.zeros(4, np.float32))


def test_dtypes_that_have_no_momentum(comm):
    with pytest.raises(ValueError, match="expected float32, or float64 in host memory, for clip and momentum"):
        gq.Reducer("raw", comm=comm, momentum=0.5).register({"a": OnDevice(np.zeros(5, np.float64))})
