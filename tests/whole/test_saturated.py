"""How many values a codec had to clip is counted once for each encoding, and by codecs that clip only."""

import numpy as np
import pytest
from reductions import arrays, copies
from schemes import RANKS, SCHEDULE_NAMES, WHOLE, variants
from simd import LEVELS, simd, threads

from gqallreduce.coding import lanes, layout
from gqallreduce.runtime.local import LocalAllreduce

CLIP = 0.75
every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)


def scale(v, clip=CLIP):
    """min(max |v|, clip * root mean square) of a vector, in float32."""
    return min(np.abs(v).max(initial=0), np.float32(clip * np.sqrt((v.astype(np.float64) ** 2).mean())))


def clipped(vectors):
    """Of each rank's values those above the scale that all share."""
    shared = max(map(scale, vectors))
    return [np.count_nonzero(np.abs(v) > shared) for v in vectors]


def saturated(local):
    return [spent.saturated for spent in local.spent]


@every_schedule
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_own_values_above_the_shared_scale_are_counted_once(schedule, level, dtype):
    for ranks in RANKS:
        local = LocalAllreduce(f"{schedule}/terngrad(clip={CLIP})/ef", ranks)
        before = [np.float32(0)] * ranks
        for step in range(3):
            gradients = arrays(step, ranks, (9, 117), dtype)
            expected = clipped(
                [
                    gradient.astype(np.float32).reshape(-1) + rest
                    for gradient, rest in zip(gradients, before, strict=True)
                ]
            )
            with simd(level):
                local(copies(gradients), key="w")
            before = [memory.residual("w").copy() for memory in local.memory]
            assert saturated(local) == expected, (ranks, step)
            assert sum(expected)


@every_schedule
def test_lanes_blocks_and_threads_count_what_one_block_does(schedule, monkeypatch):
    gradients = arrays(1, 3, (90_001,))
    monkeypatch.setattr(lanes, "LANE_BYTES", 4096)
    monkeypatch.setattr(layout, "BLOCK", 50_000)
    local = LocalAllreduce(f"{schedule}/terngrad(clip={CLIP})", 3)
    with threads(3):
        local(copies(gradients))
    assert saturated(local) == clipped(gradients)


@pytest.mark.parametrize("level", LEVELS)
def test_with_a_scale_of_its_own_each_encoding_of_a_rank_counts(level):
    """On allgather a rank encodes its own values alone, and so does a rank that is alone."""
    gradients = arrays(2, 2, (1000,))
    with simd(level):
        local = LocalAllreduce(f"allgather/terngrad(clip={CLIP}, shared=False)", 2)
        local(copies(gradients))
        assert saturated(local) == [np.count_nonzero(np.abs(v) > scale(v)) for v in gradients]
        local = LocalAllreduce(f"direct/terngrad(clip={CLIP}, shared=False)", 1)
        local(copies(gradients[:1]))
        assert saturated(local) == [np.count_nonzero(np.abs(gradients[0]) > scale(gradients[0]))]


@every_schedule
@variants(
    "text",
    [f"{text}/ef" for text in WHOLE if not text.startswith(("terngrad", "thc"))]
    + ["terngrad(clip=0)", "thc(rotate=False, clip=0)"],  # with feedback they clip
)
def test_what_does_not_clip_counts_nothing(text, schedule):
    local = LocalAllreduce(f"{schedule}/{text}", 3)
    local(arrays(3, 3, (500,)), key="w")
    assert saturated(local) == [0, 0, 0]


def test_every_call_counts_anew_and_so_does_one_after_an_error():
    local = LocalAllreduce(f"direct/terngrad(clip={CLIP})", 2)
    gradients = arrays(4, 2, (700,))
    local(copies(gradients))
    local(copies(gradients))
    assert saturated(local) == clipped(gradients)
    flawed = copies(gradients)
    flawed[1][5] = np.nan
    with pytest.raises(ValueError, match="rank 1"):
        local(flawed)
    local(copies(gradients))
    assert saturated(local) == clipped(gradients)
