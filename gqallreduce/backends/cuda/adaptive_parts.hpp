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

constexpr std::uint32_t kNobody = ~0u;  // a threshold that no magnitude reaches

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

// One tile's kept values, in order: entries, and the sums of each sign (at most 0, and above) in the lanes of a warp.
struct KeptValues {
  double lane[2] = {0.0, 0.0};
  std::uint32_t count[2] = {0, 0};
  Pair ties_seen = {0, 0};
  bool finite = true;  // kept or not
};

static inline void keep_tile(const Team& team, std::size_t n, std::size_t first_row, const Pair& threshold,
                             const Pair& ties, unsigned sides, std::uint8_t* entries, KeptValues& kept) {
  const std::uint32_t before = (1u << lane_index()) - 1;
  for (std::size_t row = 0; row < n; row += kWarp) {
    const std::size_t i = row + lane_index();
    const float v = i < n ? team.tile[i] : 0.0f;
    const bool side = side_of(v, sides);
    kept.finite &= is_finite(v);
    if (!ballot(magnitude(v) >= threshold[side])) continue;
    const std::uint32_t equal = ballot(magnitude(v) == threshold[side]), ones = ballot(side);
    const std::uint32_t earlier = kept.ties_seen[side] + count_bits(equal & (side ? ones : ~ones) & before);
    const bool taken = magnitude(v) == threshold[side] && earlier < ties[side];
    const bool stays = magnitude(v) > threshold[side] || taken, positive = v > 0.0f;
    kept.lane[0] += stays && !positive ? v : 0.0f;
    kept.lane[1] += stays && positive ? v : 0.0f;
    const std::uint32_t all = ballot(stays), positives = ballot(stays && positive);
    if (stays) {
      const std::size_t place = kept.count[0] + kept.count[1] + count_bits(all & before);
      store(entries + place * kEntry, static_cast<std::uint16_t>((first_row + i) << 1 | positive));
    }
    kept.count[1] += count_bits(positives);
    kept.count[0] += count_bits(all & ~positives);
    kept.ties_seen.zero += count_bits(equal & ~ones);
    kept.ties_seen.one += count_bits(equal & ones);
  }
}

// The means of a column's kept values, v <= 0 and v > 0, packed to be told.
struct Means {
  float mean[2];
};

static inline Means write_entries(Team& team, const float* v, std::size_t n, const Pair& threshold, const Pair& ties,
                                  unsigned sides, std::uint8_t* entries, std::uint32_t* status) {
  KeptValues kept;
  double sum[2] = {0.0, 0.0};
  for (std::size_t done = 0; done < n; done += team.capacity) {
    const std::size_t count = n - done < team.capacity ? n - done : team.capacity;
    if (done > 0) team.sync();
    team.stage(v + done, nullptr, count);
    if (!team.in_first_warp()) continue;
    keep_tile(team, count, done, threshold, ties, sides, entries, kept);
    for (int side = 0; side < 2; ++side) {
      sum[side] += fold(kept.lane[side]);
      kept.lane[side] = 0.0;
    }
  }
  if (!kept.finite) atomic_or(status, kNotFinite);
  Means means = {};
  for (int side = 0; side < 2; ++side)
    if (kept.count[side]) means.mean[side] = static_cast<float>(sum[side] / static_cast<double>(kept.count[side]));
  return team.tell(means);
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
