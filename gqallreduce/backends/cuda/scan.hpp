// What the threads before this one have, put together: over a warp by shuffles, over a block through a word per warp.
#pragma once
#include "block.hpp"

namespace gq {
namespace device {

struct Sum {
  template <class Number>
  Number operator()(Number a, Number b) const {
    return a + b;
  }
};

struct Largest {
  template <class Number>
  Number operator()(Number a, Number b) const {
    return a > b ? a : b;
  }
};

// The values of the lanes up to this one, combined. All 32 lanes must call it.
template <class Number, class Combine>
static inline Number scan_warp(Number value, Combine combine) {
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const Number other = from_lane(value, lane_index() - distance);
    if (lane_index() >= distance) value = combine(other, value);
  }
  return value;
}

// The values of the threads before this one, and of all threads of the block; zero is neutral. `warp` is shared memory,
// a number for each warp, not used again until the block has met.
template <class Number>
struct Scan {
  Number before, all;

  template <class Combine>
  Scan(Number value, Number* warp, Combine combine) : before(0), all(0) {
    const Number upto = scan_warp(value, combine);
    const Number previous = from_lane(upto, lane_index() - 1);
    if (lane_index() + 1 == kWarp) warp[thread_index() / kWarp] = upto;
    block_barrier();
    for (unsigned k = 0; k < threads_per_block() / kWarp; ++k) {
      if (k == thread_index() / kWarp) before = lane_index() > 0 ? combine(all, previous) : all;
      all = combine(all, warp[k]);
    }
  }
};

constexpr unsigned kScanThreads = 1024;  // of a block that scans alone what a whole grid has left

struct ScanWords {
  std::uint64_t word[kScanThreads / kWarp];
};

// The sum over the threads before this one, and over all. The block has met before it returns.
static inline std::uint64_t scan_block(ScanWords& shared, std::uint64_t value, std::uint64_t& total) {
  const Scan<std::uint64_t> scan(value, shared.word, Sum());
  block_barrier();
  total = scan.all;
  return scan.before;
}

}  // namespace device
}  // namespace gq
