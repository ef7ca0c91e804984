// Sums over the threads before each thread of a block of 1024, by shuffles.
#pragma once
#include "block.hpp"

namespace gq {
namespace device {

constexpr unsigned kScanThreads = 1024;
constexpr unsigned kScanWarps = kScanThreads / kWarp;
static_assert(kScanWarps == kWarp, "one warp scans what the warps have");

struct ScanWords {
  std::uint64_t word[kScanWarps];
};

// The sum over the lanes up to this one.
static inline std::uint64_t scan_warp(std::uint64_t value) {
  for (unsigned width = 1; width < kWarp; width *= 2) {
    const std::uint64_t before = from_lane(value, lane_index() - width);
    value += lane_index() >= width ? before : 0;
  }
  return value;
}

// The sum over the threads before this one, and the sum over all. The block has met before it returns.
static inline std::uint64_t scan_block(ScanWords& shared, std::uint64_t value, std::uint64_t& total) {
  const unsigned warp = thread_index() / kWarp;
  const std::uint64_t in_warp = scan_warp(value);
  if (lane_index() + 1 == kWarp) shared.word[warp] = in_warp;
  block_barrier();
  const std::uint64_t warps = scan_warp(shared.word[lane_index()]);  // in every warp
  total = from_lane(warps, kWarp - 1);
  const std::uint64_t before = from_lane(warps, warp - 1);
  block_barrier();
  return (warp > 0 ? before : 0) + in_warp - value;
}

}  // namespace device
}  // namespace gq
