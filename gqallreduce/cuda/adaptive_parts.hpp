// What the kernels of adaptive.cu do with one column, and what they leave each other in memory.
#pragma once
#include "block.hpp"
#include "gq/adaptive_wire.hpp"
#include "gq/ranking.hpp"
#include "team.hpp"

namespace gq {
namespace device {

constexpr unsigned kBins = 1 << 12;
constexpr unsigned kScanThreads = 1024;
constexpr std::uint32_t kNobody = ~0u;  // a threshold that no magnitude reaches

// The search for the k-th magnitude: the digits found so far, and how many of the values that agree with them are kept.
struct Search {
  std::uint32_t prefix, left;
};

// What is kept of each column: magnitudes above its threshold and the first `ties` that equal it; `first` is the number
// of its first entry, and that of the column after the last the number of all.
struct Kept {
  std::uint32_t *threshold, *ties, *first;
};

static inline Kept kept_columns(std::uint32_t* columns, std::size_t count) {
  return {columns, columns + count, columns + 2 * count};
}

// How many of a column's n magnitudes reach `bound`; up to a tile they are staged.
static inline std::uint32_t count_reaching(Team& team, const float* v, std::size_t n, std::uint32_t bound) {
  std::uint32_t count = 0;
  const float* const from = n > team.capacity ? v : team.tile;
  for (std::size_t i = team.rank; i < n; i += team.size) count += magnitude(from[i]) >= bound;
  return team.sum(count);
}

// The k-th of a column's magnitudes, bit by bit; more than k nonzero ones exist or k of them do.
static inline std::uint32_t kth_of_column(Team& team, const float* v, std::size_t n, std::uint32_t k) {
  std::uint32_t threshold = 0;
  for (std::uint32_t bit = 1u << 30; bit > 0; bit >>= 1)
    if (count_reaching(team, v, n, threshold | bit) >= k) threshold |= bit;
  return threshold;
}

// Where v = x + e can be read again: in r, if it is given, else in x itself. Without r, e must be null.
static inline bool write_formed(const Team& team, const float* x, const float* e, float* r, std::size_t n) {
  bool finite = true;
  for (std::size_t i = 4 * team.rank; i < n; i += 4 * team.size) {
    const Four<float> v = load_sum(x + i, e ? e + i : e, n - i);
    for (const float number : v.number) finite &= is_finite(number);
    if (r) store_four(r + i, v, n - i);
  }
  return finite;
}

// One tile's kept values, in order: entries, and the sums of each sign (at most 0, and above) in the lanes of a warp.
struct KeptValues {
  double lane[2] = {0.0, 0.0};
  std::uint32_t count[2] = {0, 0};
  std::uint32_t ties_seen = 0;
};

static inline void keep_tile(const Team& team, std::size_t n, std::size_t first_row, std::uint32_t threshold,
                             std::uint32_t ties, std::uint8_t* entries, KeptValues& kept) {
  const std::uint32_t before = (1u << lane_index()) - 1;
  for (std::size_t row = 0; row < n; row += kWarp) {
    const std::size_t i = row + lane_index();
    const float v = i < n ? team.tile[i] : 0.0f;
    const std::uint32_t equal = ballot(magnitude(v) == threshold);
    const bool taken = magnitude(v) == threshold && kept.ties_seen + count_bits(equal & before) < ties;
    const bool stays = magnitude(v) > threshold || taken, positive = v > 0.0f;
    kept.lane[0] += stays && !positive ? v : 0.0f;
    kept.lane[1] += stays && positive ? v : 0.0f;
    const std::uint32_t all = ballot(stays), positives = ballot(stays && positive);
    if (stays) {
      const std::size_t place = kept.count[0] + kept.count[1] + count_bits(all & before);
      store(entries + place * kEntry, static_cast<std::uint16_t>((first_row + i) << 1 | positive));
    }
    kept.count[1] += count_bits(positives);
    kept.count[0] += count_bits(all & ~positives);
    kept.ties_seen += count_bits(equal);
  }
}

// The means of a column's kept values, v <= 0 and v > 0, packed to be told.
struct Means {
  float mean[2];
};

static inline Means write_entries(Team& team, const float* v, std::size_t n, std::uint32_t threshold,
                                  std::uint32_t ties, std::uint8_t* entries) {
  KeptValues kept;
  double sum[2] = {0.0, 0.0};
  for (std::size_t done = 0; done < n; done += team.capacity) {
    const std::size_t count = n - done < team.capacity ? n - done : team.capacity;
    if (done > 0) team.sync();
    team.stage(v + done, nullptr, count);
    if (!team.in_first_warp()) continue;
    keep_tile(team, count, done, threshold, ties, entries, kept);
    for (int side = 0; side < 2; ++side) {
      sum[side] += fold(kept.lane[side]);
      kept.lane[side] = 0.0;
    }
  }
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
