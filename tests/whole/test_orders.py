"""Whole allreduces of arrays whose axes lie in memory in other orders than C and Fortran."""

import numpy as np
import pytest
from reductions import DTYPES, arrays, copies, nothing_lost, placed, residuals, same_everywhere
from schemes import SCHEDULE_NAMES, WHOLE, variants

from gqallreduce import NonFiniteError
from gqallreduce.runtime.local import LocalAllreduce

SHAPE, CHANNELS_LAST = (6, 8, 5, 7), "0,2,3,1"
IN_MEMORY = (6, 5, 7, 8)  # the extents of SHAPE as they lie in memory
every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)


@every_schedule
@variants("text", WHOLE)
def test_channels_last_is_summed_as_the_same_memory_in_c_order(text, schedule):
    for ranks, dtype in zip((1, 2, 3, 5), DTYPES, strict=True):
        local, plain = (LocalAllreduce(f"{schedule}/{text}/ef", ranks) for _ in range(2))
        for step in range(2):
            given = arrays(step, ranks, SHAPE, dtype, CHANNELS_LAST)
            before = residuals(local)
            results = copies(given)
            assert local(results, key="w") is results
            same_everywhere(results)
            nothing_lost(local, given, before, results)
            if "gradiveq" in text:  # what is a slice does not depend on the order in memory
                continue
            expected = plain([each.transpose(0, 2, 3, 1).copy() for each in given], key="w")
            assert expected[0].shape == IN_MEMORY
            for rank in range(ranks):
                assert results[rank].transpose(0, 2, 3, 1).tobytes() == expected[rank].tobytes()
                assert residuals(local)[rank].tobytes() == residuals(plain)[rank].tobytes()


@every_schedule
def test_the_first_value_that_is_not_finite_has_its_c_order_index(schedule):
    given = arrays(0, 3, SHAPE, order=CHANNELS_LAST)
    places = [(4, 7, 0, 0), (4, 0, 4, 6)]  # the other way round in memory
    for place in places:
        given[1][place] = np.nan
    with pytest.raises(NonFiniteError) as caught:
        LocalAllreduce(f"{schedule}/onebit", 3)(given, key="w")
    assert (caught.value.rank, caught.value.index) == (1, min(np.ravel_multi_index(each, SHAPE) for each in places))


def test_out_may_be_in_the_same_order():
    given, out = (arrays(seed, 3, SHAPE, order=CHANNELS_LAST) for seed in range(2))
    expected = LocalAllreduce("direct/qsgd", 3)(copies(given))
    LocalAllreduce("direct/qsgd", 3)(given, out=out)
    assert out[0].tobytes() == expected[0].tobytes()
    assert placed(out[0], order=CHANNELS_LAST).strides == out[0].strides
