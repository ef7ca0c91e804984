"""One line of text: what it may say, how it comes back, what is refused and how; and messages without MPI."""

import dataclasses
import pickle
import re

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from schemes import SCHEDULE_NAMES, TEXTS, variants

from gqallreduce import NonFiniteError, Scheme, WireError
from gqallreduce.registry import CODECS
from gqallreduce.runtime.integer_sum import integer_type
from gqallreduce.runtime.local import LocalAllreduce

PREFIXES = ["", "auto/", *(f"{name}/" for name in SCHEDULE_NAMES)]
every_text = variants("text", TEXTS)


@every_text
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("suffix", ["", "/ef"])
def test_a_text_comes_back_as_written(text, prefix, suffix):
    scheme = Scheme.parse(prefix + text + suffix)
    assert str(scheme) == prefix + text + suffix
    assert Scheme.parse(str(scheme)) == scheme
    assert scheme.schedule == (prefix[:-1] or None)
    assert scheme.feedback == bool(suffix)
    assert scheme.codec == Scheme.parse(text).codec
    assert Scheme.parse(scheme) is scheme


@every_text
def test_the_resolved_text_is_the_same_scheme_with_every_option(text):
    scheme = Scheme.parse(f"{text}/ef")
    again = Scheme.parse(scheme.resolved())
    assert again == scheme
    assert again.resolved() == scheme.resolved()
    assert scheme.resolved("ring").startswith("ring/")
    assert all(f"{option}=" in scheme.resolved() for option in scheme.codec.options())


@given(st.data())
@examples(200)
def test_spaces_do_not_matter_and_are_normalised(data):
    space = st.sampled_from(["", " ", "  ", "\n", "\t"])
    pieces = ["ring", "/", "qsgd", "(", "bits", "=", "3", ",", "bucket", "=", "64", ")", "/", "ef"]
    text = "".join(data.draw(space) + piece for piece in pieces) + data.draw(space)
    assert str(Scheme.parse(text)) == "ring/qsgd(bits=3, bucket=64)/ef"


@given(
    st.sampled_from(PREFIXES),
    st.integers(2, 8),
    st.integers(1, 2**31 - 1),
    st.sampled_from(["max", "l2"]),
    st.booleans(),
    st.permutations(["bits", "bucket", "norm", "zero_level"]),
    st.integers(0, 4),
    st.sampled_from(["", "/ef"]),
)
@examples(200)
def test_any_options_in_any_order_round_trip(prefix, bits, bucket, norm, zero_level, order, number, suffix):
    values = {"bits": bits, "bucket": bucket, "norm": norm, "zero_level": zero_level}
    options = ", ".join(f"{name}={values[name]}" for name in order[:number])
    text = f"{prefix}qsgd({options}){suffix}" if options else f"{prefix}qsgd{suffix}"
    scheme = Scheme.parse(text)
    assert str(scheme) == text
    assert all(getattr(scheme.codec, name) == values[name] for name in order[:number])
    defaults = CODECS["qsgd"].options()
    assert all(getattr(scheme.codec, name) == defaults[name] for name in order[number:])


EQUAL = [
    ("qsgd", "qsgd()"),
    ("qsgd", "qsgd(bits=4)"),
    ("qsgd(bits=4, bucket=512)", "qsgd(bucket=512, bits=4)"),
    ("qsgd(norm='max')", "qsgd(norm=max)"),
    ("ring/adaptive/ef", " ring / adaptive ( pi = 64 ) / ef "),
    ("onebit/ef", "onebit()/ef"),
    ("qsgd(bucket=0x200)", "qsgd"),
]
DIFFERENT = [
    ("ring/qsgd", "qsgd"),
    ("ring/qsgd", "direct/qsgd"),
    ("auto/qsgd", "qsgd"),
    ("qsgd", "qsgd/ef"),
    ("qsgd(bits=4)", "qsgd(bits=5)"),
    ("raw", "onebit"),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equality_is_that_of_resolved_values(one, other):
    assert Scheme.parse(one) == Scheme.parse(other)
    assert hash(Scheme.parse(one)) == hash(Scheme.parse(other))
    assert Scheme.parse(one).resolved() == Scheme.parse(other).resolved()


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_differs_is_not_equal(one, other):
    assert Scheme.parse(one) != Scheme.parse(other)
    assert Scheme.parse(one).resolved() != Scheme.parse(other).resolved()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("qsdg", "did you mean 'qsgd'"),
        ("rign/raw", "did you mean 'ring'"),
        ("ring/ones", "did you mean 'onebit'"),
        ("qsgd(bit=4)", "did you mean 'bits'"),
        ("qsgd(bits=9)", "from 1 to 8"),
        ("adaptive(scope=row)", "matrix, column"),
        ("raw/fe", "unknown schedule"),
        ("raw/ef/ef", "'ef' in place of a codec"),
        ("qsgd(rotate=true)", "did you mean 'True'"),
        ("halving/qsgd", "known: allgather, auto, direct, halving_doubling, hierarchical, mpi,"),
        ("mpi/terngrad(shared=False)", "with their default options these have: terngrad, thc, threshold"),
        ("ring/raw/fe", "expected 'ef'"),
        ("ring/direct/raw", "expected 'ef'"),
        ("", "expected"),
        ("/", "expected"),
        ("ring/", "expected"),
        ("/raw", "expected"),
        ("ef", "unknown codec"),
        ("raw(", "expected"),
        ("qsgd(4)", "keyword options only"),
        ("qsgd(bits=4", "expected"),
        ("qsgd(bits)", "keyword options only"),
        ("qsgd(*x)", "keyword options only"),
        ("qsgd(**x)", "keyword options only"),
        ("qsgd(bits=4, bits=4)", "cannot be read"),
        ("qsgd(bits=f())", "cannot be read"),
        ("qsgd(bits=a.b)", "cannot be read"),
        ("qsgd(bits=__import__('os').getpid())", "cannot be read"),
        ("qsgd(bits=4)(bucket=3)", "cannot be read"),
        ("qsgd bits=4", "expected"),
        ("raw;raw", "expected"),
    ],
)
def test_refused_text_says_what_is_wrong_and_what_is_near(text, says):
    with pytest.raises(ValueError, match=says):
        Scheme.parse(text)


@given(st.text(max_size=40) | st.text("qsgdrawineb/()=, 48'", max_size=40))
@examples(400)
def test_any_text_is_a_scheme_or_a_value_error(text):
    try:
        scheme = Scheme.parse(text)
    except ValueError:
        return
    assert Scheme.parse(str(scheme)) == scheme


@pytest.mark.parametrize("value", [None, 4, ["raw"], b"raw"], ids=str)
def test_what_is_no_text_is_refused_with_what_was_got_and_expected(value):
    with pytest.raises(TypeError, match=rf"scheme: got {re.escape(repr(value))}, expected text such as"):
        Scheme.parse(value)


def test_a_scheme_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Scheme.parse("raw").feedback = True


# --- one message ---


@every_text
@pytest.mark.parametrize("size", [0, 1, 7, 4097])
def test_a_message_round_trips(text, size):
    scheme = Scheme.parse(text)
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    data = scheme.encode(x, seed=3, step=4)
    y = scheme.decode(data, size)
    assert isinstance(data, bytes)
    assert y.dtype == np.float32
    assert y.shape == (size,)
    assert scheme.encode(x, seed=3, step=4) == data
    assert scheme.encode(x, seed=3, step=4 + 2**32) == data
    np.testing.assert_array_equal(scheme.decode(bytearray(data), size), y)
    np.testing.assert_array_equal(scheme.decode(memoryview(data), size), y)
    if text == "raw":
        np.testing.assert_array_equal(y, x)


@every_text
def test_seed_and_step_matter_to_random_codecs_only(text):
    scheme = Scheme.parse(text)
    x = np.random.default_rng(1).standard_normal((20, 25)).astype(np.float32)
    payloads = {scheme.encode(x, seed=seed, step=step)[32:] for seed, step in ((0, 0), (1, 0), (0, 1))}
    assert len(payloads) == (1 if scheme.codec.deterministic else 3)


@pytest.mark.parametrize("text", ["qsgd", "terngrad"])
def test_all_32_bits_of_a_step_matter(text):
    x = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    steps = (0, 1, 2**8, 2**16, 2**16 + 1, 2**24, 2**31, 2**32 - 1)
    assert len({Scheme.parse(text).encode(x, step=step)[32:] for step in steps}) == len(steps)


@every_text
def test_a_message_is_the_same_for_schedule_and_feedback(text):
    x = np.arange(-5, 40, dtype=np.float32)
    plain, kept = Scheme.parse(text), Scheme.parse(f"ring/{text}/ef")
    assert kept.encode(x) == Scheme.parse(f"{text}/ef").encode(x)
    assert kept.encode(x) == plain.encode(x) or kept.codec.contracted


@every_text
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_message_of_what_is_not_finite_is_refused_with_its_index(text, value):
    x = np.ones(200_000, np.float32)
    x[[150_000, 199_999]] = value
    with pytest.raises(NonFiniteError) as caught:
        Scheme.parse(text).encode(x)
    assert (caught.value.rank, caught.value.index) == (0, 150_000)


def test_every_shape_is_one_vector_in_memory_order():
    x = np.arange(12, dtype=np.float64).reshape(3, 4)
    scheme = Scheme.parse("raw")
    np.testing.assert_array_equal(scheme.decode(scheme.encode(x), 12), np.arange(12))
    np.testing.assert_array_equal(scheme.decode(scheme.encode(3.5), 1), [3.5])
    np.testing.assert_array_equal(scheme.decode(scheme.encode([1, 2]), 2), [1, 2])


def test_a_message_that_is_refused_says_what_was_got_and_what_was_expected():
    message, other = (Scheme.parse(text).encode([1.0, 2.0]) for text in ("raw", "float16"))
    for data, size in ((other, 2), (message + b"\0", 2), (message, 1)):
        with pytest.raises(WireError, match=r"got .* expected"):
            Scheme.parse("raw").decode(data, size)


@pytest.mark.parametrize("text", ["dense", " dense ", "dense/ef"])
def test_dense_is_a_scheme_of_its_own(text):
    scheme = Scheme.parse(text)
    assert (scheme.schedule, scheme.codec.name, scheme.feedback) == ("dense", "raw", text.endswith("/ef"))
    assert str(scheme) == scheme.resolved() == text.strip()
    assert scheme != Scheme.parse("raw")
    assert Scheme.parse(str(scheme)) == scheme


@pytest.mark.parametrize("text", ["ring/dense", "dense/raw", "dense(bits=4)", "auto/dense", "dense/raw/ef"])
def test_dense_takes_no_schedule_codec_or_option(text):
    with pytest.raises(ValueError, match="expected 'dense' or 'dense/ef'"):
        Scheme.parse(text)


def test_dense_needs_mpi():
    with pytest.raises(ValueError, match="under MPI"):
        LocalAllreduce("dense", 2)
    with pytest.raises(ValueError, match="auto/ measures calls under MPI"):
        LocalAllreduce("auto/onebit/ef", 2)


def test_mpi_adds_the_sums_of_codecs_with_integers_alone():
    for text in ("mpi/thc", "mpi/terngrad/ef", "mpi/threshold(tau=2)"):
        scheme = Scheme.parse(text)
        assert scheme.schedule == "mpi"
        assert Scheme.parse(scheme.resolved()) == scheme
    for text in ("mpi/qsgd", "mpi/raw", "mpi/terngrad(shared=False)", "mpi/randk"):
        with pytest.raises(ValueError, match=r"integers only.*terngrad, thc, threshold"):
            Scheme.parse(text)


def test_mpi_needs_mpi():
    with pytest.raises(ValueError, match="allgather gives the same"):
        LocalAllreduce("mpi/thc", 2)


@pytest.mark.parametrize(
    ("most", "name"), [(1, "int8"), (127, "int8"), (128, "int16"), (32767, "int16"), (32768, "int32")]
)
def test_the_narrowest_integers_that_hold_a_sum(most, name):
    assert integer_type(most) == np.dtype(name)


def test_options_of_a_schedule_are_written_as_they_were_and_resolved_in_full():
    text = "hierarchical(leaders=one, outer=ring)/onebit(column=1)/ef"
    scheme = Scheme.parse(text)
    assert str(scheme) == text
    assert scheme == Scheme.parse("hierarchical( outer = ring,leaders=one ) / onebit(column=1)/ef")
    assert scheme.resolved() == "hierarchical(outer=ring, leaders=one)/onebit(column=1)/ef"
    assert Scheme.parse("hierarchical/raw").resolved() == "hierarchical(outer=direct, leaders=all)/raw"
    assert Scheme.parse(Scheme.parse("hierarchical/raw").resolved()) == Scheme.parse("hierarchical/raw")
    assert pickle.loads(pickle.dumps(scheme)) == scheme


@pytest.mark.parametrize(
    "text", ["ring(outer=direct)/raw", "auto(outer=ring)/raw", "mpi(x=1)/thc", "hierarchical(ring)/raw"]
)
def test_options_that_a_schedule_has_not_are_refused(text):
    with pytest.raises(ValueError, match=r"has no options|keyword options only"):
        Scheme.parse(text)
