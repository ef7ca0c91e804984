"""A long vector, which is written with streaming stores, gives the same sums and residuals as one that is not."""

import numpy as np
import pytest

from gqallreduce.coding.layout import Region
from gqallreduce.runtime.local import LocalAllreduce


def outcome(text, size):
    allreduce = LocalAllreduce(text, 3)
    rng = np.random.default_rng(5)
    sums = []
    for _ in range(2):
        arrays = [rng.standard_normal(size).astype(np.float32) for _ in range(3)]
        allreduce(arrays, key="w")
        sums.append(arrays[0].tobytes())
    return sums, [memory.residual("w").tobytes() for memory in allreduce.memory if "w" in memory]


@pytest.mark.parametrize("text", ["ring/raw", "direct/adaptive/ef", "recursive_doubling/adaptive(scope=column)/ef"])
def test_streaming_changes_no_result(text, monkeypatch):
    expected = outcome(text, 300_001)
    assert not Region(0, 1, None, (1 << 21) - 1).streams
    assert Region(0, 1, None, 1 << 21).streams
    monkeypatch.setattr(Region, "STREAM_LEAST", 1)
    assert outcome(text, 300_001) == expected
