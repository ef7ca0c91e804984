"""Plain arrays that are known again by their forms: the same buffers as one by one, or none."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gqallreduce import _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding.layout import Form

SHAPE = (3, 4)


@pytest.fixture(autouse=True, scope="module", params=["by heads", "by the buffer protocol"])
def way(request):
    """How arrays are looked at."""
    _kernels.look_by_heads(request.param == "by heads")
    yield
    _kernels.look_by_heads(True)


def test_heads_of_arrays_are_as_expected():
    assert _kernels.heads_are_as_expected()


def known(*arrays, group=True):
    return _kernels.KnownForms(tuple(Buffer(each).form for each in arrays), group)


def fresh(dtype="float32", order="C"):
    return np.zeros(SHAPE, dtype, order)


def read_only():
    array = fresh()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_of_the_same_form_is_known(dtype, order):
    forms, array = known(fresh(dtype, order), group=False), fresh(dtype, order)
    arrays = forms.look(array)
    assert arrays.owners == (array,)
    assert forms.nbytes == array.nbytes
    one, other = Buffer.of_known(arrays, 0), Buffer(array)
    assert (one.form, one.bounds, one.dtype, one.readonly) == (other.form, other.bounds, other.dtype, False)
    one.memory[:] = np.arange(12)
    np.testing.assert_array_equal(one.array, array)
    np.testing.assert_array_equal(array.ravel(order), np.arange(12))


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (3, 0), (1, 1)])
def test_strides_of_axes_with_one_place_do_not_matter(shape):
    """NumPy keeps any there, and any in an array without elements."""
    like = np.zeros(shape, np.float32)
    strides = [400 if places == 1 or not like.size else step for places, step in zip(shape, like.strides, strict=True)]
    array = np.lib.stride_tricks.as_strided(like, strides=strides)
    assert array.flags.c_contiguous
    assert known(like, group=False).look(array).owners == (array,)


OTHERS = {
    "another shape": np.zeros((4, 3), np.float32),
    "more axes": np.zeros((3, 4, 1), np.float32),
    "another order": fresh(order="F"),
    "another dtype": fresh("float64"),
    "bytes swapped": fresh(">f4"),
    "gaps": np.zeros((3, 8), np.float32)[:, ::2],
    "rows apart": np.zeros((3, 5), np.float32)[:, :4],
    "backwards": np.zeros(SHAPE, np.float32)[::-1],
    "a subclass": fresh().view(Subclass),
    "a mask": np.ma.zeros(SHAPE, np.float32),
    "bfloat16": fresh(ml_dtypes.bfloat16),
    "integers": fresh("int32"),
    "read-only": read_only(),
    "a list": fresh().tolist(),
    "nothing": None,
}


@pytest.mark.parametrize("what", OTHERS)
def test_anything_else_is_not(what):
    assert known(fresh(), group=False).look(OTHERS[what]) is None
    assert known(fresh(), fresh()).look([fresh(), OTHERS[what]]) is None


def test_forms_of_other_buffers_know_none():
    for form in (Form(SHAPE, "C", "bfloat16"), Form(SHAPE, "10", "float32"), Form(SHAPE, "C", "float32", ())):
        assert _kernels.KnownForms((form,), False).look(fresh()) is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_group_has_as_many_arrays(count):
    forms = known(fresh(), fresh())
    assert forms.look([fresh() for _ in range(count)]) is None
    assert forms.look(fresh()) is None
    assert len(forms.look((fresh(), fresh())).owners) == 2


def test_those_of_a_group_are_picked_from_more():
    few, others = [fresh(), fresh("float64")], [fresh("float16"), fresh()]
    forms, places = known(*few), _kernels.Places((2, 0))
    every = [few[1], others[0], few[0], others[1]]
    assert all(found is given for found, given in zip(forms.look(every, places).owners, few, strict=True))
    assert forms.look(every[:2], places) is None
    assert forms.look(every[::-1], places) is None
    assert forms.look(every, _kernels.Places((2, -1))) is None
    assert forms.look(every, _kernels.Places((2,))) is None


@pytest.mark.parametrize(("first", "second", "apart"), [(0, 5, True), (0, 4, False), (5, 0, True), (2, 0, False)])
def test_arrays_of_a_group_share_no_memory(first, second, apart):
    memory = np.zeros(20, np.float32)
    arrays = [memory[first : first + 5], memory[second : second + 5]]
    assert (known(*arrays).look(arrays) is not None) == apart


def test_arrays_without_elements_share_none():
    memory = np.zeros(5, np.float32)
    arrays = [memory, memory[2:2], memory[2:2]]
    assert known(*arrays).look(arrays) is not None


def test_memory_is_found_where_it_was_when_it_was_looked_at():
    array = fresh()
    arrays = known(array, group=False).look(array)
    array.shape = (12,)
    assert Buffer.of_known(arrays, 0).shape == SHAPE
    del array
    assert Buffer.of_known(arrays, 0).memory.sum() == 0


EXTENTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), min_size=1, max_size=5)


@given(EXTENTS, EXTENTS)
def test_groups_meet_where_two_of_their_arrays_do(mine, others):
    """Each group itself may overlap here: then it is not known."""
    memory = np.zeros(50, np.float32)
    both = []
    for extents in (mine, others):
        views = [memory[at : at + size] for at, size in extents]
        arrays = known(*views).look(views)
        used = [each for at, size in extents for each in range(at, at + size)]
        assert (arrays is None) == (len(set(used)) < len(used))
        both.append((arrays, set(used)))
    (one, here), (two, there) = both
    if one is not None and two is not None:
        assert one.meet(two) == two.meet(one) == bool(here & there)


def test_values_come_in_the_order_of_names():
    """Of a dict, or of pairs; None if they are others, or in another order."""
    names, values = ("a", "b", "c"), (object(), object(), object())
    pairs = list(zip(names, values, strict=True))
    for named in (dict(pairs), pairs):
        assert _kernels.values_in_order(named, names) == values
        assert _kernels.values_in_order(named, names[:2]) is None
        assert _kernels.values_in_order(named, ("a", "c", "b")) is None
    for unfit in ([*pairs[:2], list(pairs[2])], [*pairs[:2], (*pairs[2], 0)], [*pairs[:2], ("d", 0)]):
        assert _kernels.values_in_order(unfit, names) is None
        assert not _kernels.are_pairs(unfit) or unfit[2][0] == "d"
