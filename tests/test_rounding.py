"""What a caller has set for its own arithmetic changes no bit of ours, and is as before after a call."""

import copy
import threading

import numpy as np
import pytest
from float_control import WORDS, control, set_in_this_thread
from ranks import schemes

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce.registry import CODECS
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime.local import LocalAllreduce

RANKS = 5  # of which four hold the same partial sum in recursive_doubling
USUAL = _kernels.USUAL_FLOAT_CONTROL
every_word = pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
every_example = pytest.mark.parametrize("text", [CODECS[name].example for name in sorted(CODECS)])
DTYPES = ("float16", "float32", "float64")


def tiny(dtype, step=0):
    """Normal numbers, denormals, and what becomes a denormal in a sum or a product; alike for every call."""
    least = np.finfo(dtype).smallest_normal
    draws = np.random.default_rng(step).standard_normal((RANKS, 6, 35))
    draws[:, ::2] *= 1e-3
    return list((draws * float(max(least, 1e-300)) * (1e-8 if dtype == "float64" else 1)).astype(dtype))


# --- the environment itself ---


@every_word
def test_the_usual_environment_is_set_and_the_callers_comes_back(word):
    with set_in_this_thread(word), np.errstate(all="raise"):
        with usual_arithmetic():
            assert control() == USUAL
            assert set(np.geterr().values()) == {"ignore"}
            assert np.float32(3e38) * np.float32(10) == np.inf
        assert set(np.geterr().values()) == {"raise"}


@every_word
def test_it_comes_back_after_an_exception_too(word):
    @usual_arithmetic()
    def fail():
        raise KeyError("w")

    with set_in_this_thread(word), np.errstate(all="raise"):
        with pytest.raises(KeyError):
            fail()
        assert set(np.geterr().values()) == {"raise"}


@every_word
def test_a_decorated_function_may_call_itself(word):
    @usual_arithmetic()
    def down(depth):
        return control() if depth == 0 else down(depth - 1) + control()

    with set_in_this_thread(word):
        assert down(3) == 4 * USUAL


def test_it_belongs_to_one_thread():
    seen = []
    with set_in_this_thread(WORDS["denormals are zero"]):
        other = threading.Thread(target=lambda: seen.append(usual_arithmetic()(control)()))
        with usual_arithmetic():
            other.start()
            other.join()
            assert [*seen, control()] == [USUAL, USUAL]


@pytest.mark.parametrize("word", [0x10000, 0x1F80 | 1 << 31])
def test_bits_that_the_processor_lacks_are_refused(word):
    with pytest.raises(ValueError, match="control word"):
        _kernels.set_float_control(word)


# --- calls in it ---


@pytest.mark.parametrize("scheme", schemes(True))
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_overflow_is_named_although_numpy_is_to_raise(scheme, dtype):
    """And the object goes on, with the bits of one whose caller has set nothing."""
    allreduce, plain = LocalAllreduce(scheme, RANKS), LocalAllreduce(scheme, RANKS)
    too_large = [np.full((6, 35), np.finfo(dtype).max, dtype) for _ in range(RANKS)]
    good = [tiny(dtype, step) for step in range(2)]
    expected = [plain(arrays, key="w") for arrays in map(copy.deepcopy, good)]
    with np.errstate(all="raise"):
        if "threshold" not in scheme or dtype == "float64":  # it sends no more than its threshold
            with pytest.raises(gq.NonFiniteError):
                allreduce(too_large, key="w")
        results = [allreduce(arrays, key="w") for arrays in good]
    np.testing.assert_array_equal(results, expected)


@every_word
@pytest.mark.parametrize("scheme", schemes(True))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_control_word_changes_no_bit_of_a_result(scheme, dtype, word):
    allreduce, plain = (LocalAllreduce(scheme, RANKS, average=True) for _ in range(2))
    for step in range(2):
        expected = plain(tiny(dtype, step), key="w")
        arrays = tiny(dtype, step)
        with set_in_this_thread(word):
            allreduce(arrays, key="w")
        assert [array.tobytes() for array in arrays] == [array.tobytes() for array in expected]
        for mine, others in zip(allreduce.memory, plain.memory, strict=True):
            assert mine.residual("w").tobytes() == others.residual("w").tobytes()


@every_word
@every_example
def test_a_control_word_changes_no_byte_of_a_message(text, word):
    scheme, values = gq.Scheme.parse(text), tiny("float32")[0]
    message = scheme.encode(values)
    with set_in_this_thread(word):
        assert scheme.encode(values) == message
        decoded = scheme.decode(message, values.shape)
    assert decoded.tobytes() == scheme.decode(message, values.shape).tobytes()


@every_example
def test_a_message_of_too_large_values_is_refused_by_name_although_numpy_is_to_raise(text):
    scheme = gq.Scheme.parse(text)
    with np.errstate(all="raise"):
        for values in ([np.nan, 1.0], [1e300, 1.0]):
            with pytest.raises(gq.NonFiniteError):
                scheme.encode(values)


@every_word
def test_a_scheme_is_read_alike_whatever_the_control_word(word):
    with set_in_this_thread(word), np.errstate(all="raise"):
        smallest = gq.Scheme.parse(f"threshold(tau={2.0**-149})")
        with pytest.raises(ValueError, match="tau"):
            gq.Scheme.parse("threshold(tau=1e39)")
    assert smallest.codec.unit == 2.0**-149
