// What the kernels of adaptive.cu leave each other in memory, and how they write and check one column.
//
// Values are kept by side: with separate signs side 0 are positive and side 1 negative values, with joint signs side 0
// are all.
#pragma once
#include "block.hpp"
#include "gq/adaptive_wire.hpp"
#include "gq/ranking.hpp"
#include "regions.hpp"
#include "team.hpp"

namespace gq {
namespace device {

constexpr std::uint32_t kUnreachable = ~0u;  // a threshold that no magnitude reaches

// A number for each side. (Arrays that are indexed by a side would lie in memory.)
struct Pair {
  std::uint32_t zero, one;

  std::uint32_t operator[](bool side) const { return side ? one : zero; }
};

// What each side has of one unit, less than 2^15 values, in the halves of one word.
static inline Pair of_halves(std::uint32_t word) { return {word & 0xffff, word >> 16}; }

static inline bool side_of(float v, unsigned sides) { return sides == 2 && bits_of(v) >> 31; }

// What is kept of each unit stands in three arrays: magnitudes above its `threshold` and the first `ties` that equal
// it, both for each side; `first` is the number of its first entry, and that of the unit after the last the number of
// all. The arrays may be slices: `first` need not begin at zero.
static inline Pair load_pair(const std::uint32_t* numbers, std::size_t unit, unsigned sides) {
  return {numbers[unit * sides], sides == 2 ? numbers[unit * sides + 1] : 0};
}

static inline void store_pair(std::uint32_t* numbers, std::size_t unit, unsigned sides, const Pair& pair) {
  numbers[unit * sides] = pair.zero;
  if (sides == 2) numbers[unit * sides + 1] = pair.one;
}

// Where the message of a region begins; that of the region after the last begins where all end.
static inline std::size_t message_begin(const RegionRow* regions, std::size_t region, const std::uint32_t* first) {
  const std::size_t units = regions[region].first;
  return units * kColumnHeader + region * headers_nbytes(0) + std::size_t(first[units] - first[0]) * kEntry;
}

// The number of entries of each message, and the bytes of all messages: what belongs to no unit.
static inline void write_totals(std::uint8_t* wire, const RegionRow* regions, std::size_t count,
                                const std::uint32_t* first, std::uint64_t* length) {
  const std::size_t thread = std::size_t(block_index()) * threads_per_block() + thread_index();
  for (std::size_t region = thread; region < count; region += std::size_t(blocks_per_grid()) * threads_per_block()) {
    const std::size_t begin = regions[region].first, end = regions[region + 1].first;
    store(wire + message_begin(regions, region, first) + (end - begin) * kColumnHeader, first[end] - first[begin]);
  }
  if (thread == 0) *length = message_begin(regions, count, first);
}

// A column's kept values, in order: how many there are of each sign (at most 0, and above), and their sums in the lanes
// of a warp.
struct KeptValues {
  double lane[2] = {0.0, 0.0};
  std::uint32_t count = 0, positive = 0;
  Pair ties_seen = {0, 0};
};

// Which of a row's values stay: v is this lane's.
static inline bool stays(float v, const Pair& threshold, const Pair& ties, unsigned sides, KeptValues& kept) {
  const bool side = side_of(v, sides), ties_here = magnitude(v) == threshold[side];
  const std::uint32_t equal = ballot(ties_here);
  if (!equal) return magnitude(v) > threshold[side];
  const std::uint32_t ones = ballot(side), before = (1u << lane_index()) - 1;
  const std::uint32_t earlier = kept.ties_seen[side] + count_bits(equal & (side ? ones : ~ones) & before);
  kept.ties_seen.zero += count_bits(equal & ~ones);
  kept.ties_seen.one += count_bits(equal & ones);
  return magnitude(v) > threshold[side] || (ties_here && earlier < ties[side]);
}

static inline void keep_row(float v, bool stays, std::size_t row, std::uint8_t* entries, KeptValues& kept) {
  const bool positive = v > 0.0f;
  const std::uint32_t all = ballot(stays), before = (1u << lane_index()) - 1;
  const std::uint32_t positives = ballot(stays && positive);
  if (stays) {
    (positive ? kept.lane[1] : kept.lane[0]) += static_cast<double>(v);
    store(entries + (kept.count + count_bits(all & before)) * kEntry, static_cast<std::uint16_t>(row << 1 | positive));
  }
  kept.count += count_bits(all);
  kept.positive += count_bits(positives);
}

// The means of a column's kept values, v <= 0 and v > 0.
struct Means {
  float mean[2];
};

// Writes the entries of a column of n values, for a warp, in the blocks of the sum rule.
static inline Means write_entries(const float* v, std::size_t n, const Pair& threshold, const Pair& ties,
                                  unsigned sides, std::uint8_t* entries, std::uint32_t* status) {
  constexpr unsigned kRows = 8;  // on their way before the first is needed
  KeptValues kept;
  double sum[2] = {0.0, 0.0};
  std::uint32_t largest = 0;
  for (std::size_t begin = 0; begin < n; begin += kSumBlock) {
    const unsigned count = n - begin < kSumBlock ? static_cast<unsigned>(n - begin) : kSumBlock;
    for (unsigned done = 0; done < count; done += kRows * kWarp) {
      const unsigned i = done + lane_index();
      float row[kRows];
      GQ_UNROLL
      for (unsigned k = 0; k < kRows; ++k) row[k] = i + k * kWarp < count ? v[begin + i + k * kWarp] : 0.0f;
      GQ_UNROLL
      for (unsigned k = 0; k < kRows; ++k) {
        largest = magnitude(row[k]) > largest ? magnitude(row[k]) : largest;
        if (!ballot(magnitude(row[k]) >= threshold[side_of(row[k], sides)])) continue;
        keep_row(row[k], stays(row[k], threshold, ties, sides, kept), begin + i + k * kWarp, entries, kept);
      }
    }
    for (int side = 0; side < 2; ++side) {
      sum[side] += fold(kept.lane[side]);
      kept.lane[side] = 0.0;
    }
  }
  if (largest >= kInfinity) atomic_or(status, kNotFinite);
  const std::uint32_t counts[2] = {kept.count - kept.positive, kept.positive};
  Means means = {};
  for (int side = 0; side < 2; ++side)
    if (counts[side]) means.mean[side] = static_cast<float>(sum[side] / static_cast<double>(counts[side]));
  return means;
}

// Rows ascending strictly and below the height, for the whole team?
static inline bool lawful(Team& team, const std::uint8_t* entries, std::size_t count, std::size_t height) {
  std::uint32_t bad = 0;
  for (std::size_t i = team.rank; i < count; i += team.size) {
    const unsigned row = load<std::uint16_t>(entries + i * kEntry) >> 1;
    bad |= row >= height;
    if (i > 0) bad |= row <= static_cast<unsigned>(load<std::uint16_t>(entries + (i - 1) * kEntry) >> 1);
  }
  return team.largest(bad) == 0;
}

}  // namespace device
}  // namespace gq
