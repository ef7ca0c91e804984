"""A kernel in which a barrier is missing is found, whatever comes out of it, and one that has them all is not."""

import contextlib

import numpy as np
import pytest
from copying import Copying
from races import RacesRuntime, needs_thread_sanitizer

# Of a tool of `make sanitize`, which `make test` does not use.
pytestmark = [needs_thread_sanitizer, pytest.mark.slow]
NEIGHBOURS = """
// Each thread writes a number and reads that of the thread `far` places on.
GQ_KERNEL {name}(std::uint32_t* out, unsigned far) {{
  GQ_SHARED std::uint32_t numbers[64];
  for (unsigned round = 0; round < 3; ++round) {{
    numbers[thread_index()] = round;
    {barrier};
    out[64 * block_index() + thread_index()] = numbers[(thread_index() + far) % 64];
    {barrier};
  }}
}}
"""
OTHERS = """
GQ_KERNEL one_barrier_of_two(std::uint32_t* out) {
  GQ_SHARED std::uint32_t number;
  for (unsigned round = 0; round < 3; ++round) {
    if (thread_index() == 0) number = round;
    block_barrier();
    out[64 * block_index() + thread_index()] = number;
  }
}
GQ_KERNEL blocks_write_one_place(std::uint32_t* out) { if (thread_index() == 0) out[0] = 7; }
GQ_KERNEL bytes(std::uint8_t* out) { out[64 * block_index() + thread_index()] = 7; }
GQ_KERNEL added(std::uint32_t* out) { atomic_add(out, 1); }
GQ_KERNEL read_while_added(std::uint32_t* out) {
  if (thread_index() < 32) atomic_add(out, 1);
  else out[thread_index()] = out[0];
}
"""
BARRIERS = {"by_block": "block_barrier()", "by_warp": "warp_barrier()", "by_ballot": "ballot(true)"}
HERE, NEXT = np.uint32(0), np.uint32(1)


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    neighbours = [NEIGHBOURS.format(name=name, barrier=barrier) for name, barrier in BARRIERS.items()]
    path = tmp_path_factory.mktemp("kernels") / "planted"
    begin = '#include "block.hpp"\nusing namespace gq::device;\n'
    path.with_suffix(".cu").write_text("".join([begin, *neighbours, OTHERS]))
    return str(path)


def launch(family, kernel, blocks, *arguments, descending=False):
    out = np.zeros(64 * blocks, np.uint8 if kernel == "bytes" else np.uint32)
    with contextlib.closing(RacesRuntime(descending)) as device:
        Copying(device)(family, kernel, blocks, 64, out, *arguments)
    return out


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [("by_block", [NEXT]), ("by_warp", [HERE]), ("by_ballot", [HERE]), ("added", []), ("bytes", [])],
)
def test_what_barriers_and_atomics_order_is_no_race(family, kernel, arguments):
    assert launch(family, kernel, 9, *arguments).any()


@pytest.mark.parametrize(
    ("kernel", "blocks", "arguments"),
    [
        ("by_warp", 1, [NEXT]),
        ("by_ballot", 1, [NEXT]),
        ("one_barrier_of_two", 1, []),
        ("blocks_write_one_place", 2, []),
        ("read_while_added", 1, []),
    ],
)
def test_what_nothing_orders_is_a_race(family, kernel, blocks, arguments):
    for descending in (False, True):
        with pytest.raises(AssertionError, match="data race"):
            launch(family, kernel, blocks, *arguments, descending=descending)
