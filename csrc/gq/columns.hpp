// The largest values of each column: exactly max(1, height / pi) nonzero ones, fewer if fewer exist, ties in memory
// order. With separate signs they are split in proportion to the numbers of positive and negative values, rounded down;
// the value left over is the larger of the two that come next.
//
// The threshold of a column is a good guess for the next one: a little below it are all candidates. Among them (or in
// the column, if the guess was too high) the threshold is found by bisection over the bits of |v|.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/grid.hpp"
#include "gq/select.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr std::size_t kTallestColumn = 32767;  // a row and a sign fit 16 bits

static inline std::size_t share_of(std::size_t height, std::size_t pi) { return height / pi ? height / pi : 1; }

// The most values that select_columns keeps.
static std::size_t select_bound(const Grid& grid, std::size_t n, std::size_t pi) {
  std::size_t bound = 0;
  for (Units unit(grid, n); unit.inside(); unit.advance()) bound += share_of(unit.height(), pi);
  return bound;
}

static std::size_t count_above(const float* v, std::size_t n, Side side, std::int32_t bound) {
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < n; ++i) count += key_of(v[i], side) > bound;
  return count;
}

static std::int32_t largest_key(const float* v, std::size_t n, Side side) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = key_of(v[i], side) > largest ? key_of(v[i], side) : largest;
  return largest;
}

// The k-th largest key, k >= 1 of them being known to be >= floor >= 1; or, if `any` will do, some number that exactly k
// keys reach.
static std::int32_t threshold_of(const float* v, std::size_t n, Side side, std::size_t k, std::int32_t floor, bool any) {
  const std::int32_t largest = largest_key(v, n, side);
  if (k == 1 || largest == floor) return largest;
  int bit = 31 - __builtin_clz(static_cast<unsigned>(floor ^ largest));
  std::int32_t threshold = largest >> bit >> 1 << bit << 1;  // the bits that floor and largest share
  for (; bit >= 0; --bit) {
    const std::int32_t higher = threshold | 1 << bit;
    const std::size_t count = count_above(v, n, side, higher - 1);
    if (count >= k) threshold = higher;
    if (count == k && any) break;
  }
  return threshold;
}

// How many values of each sign a column keeps; all of them are counted as positive where the signs are joint.
struct Shares {
  bool joint;
  std::size_t positive, negative;
  bool left_over;  // one more, of the sign whose next value is larger

  std::size_t needed(bool is_negative, std::size_t existing) const {
    const std::size_t share = (is_negative ? negative : positive) + left_over;
    return share < existing ? share : existing;
  }
};

struct Counts {
  std::size_t positive, negative;
};

static Counts count_keys(const float* v, std::size_t n, bool joint) {
  return {count_above(v, n, joint ? kBothSigns : kPositive, 0), joint ? 0 : count_above(v, n, kNegative, 0)};
}

static Shares shares_of(Counts exist, std::size_t k, bool joint) {
  const std::size_t all = exist.positive + exist.negative;
  if (all <= k) return {joint, exist.positive, exist.negative, false};
  const std::size_t positive = k * exist.positive / all, negative = k * exist.negative / all;
  return {joint, positive, negative, positive + negative < k};
}

// The place of the value that comes next after the `taken` largest of a side, whose key is `key`.
static std::size_t place_of_next(const float* v, std::size_t n, Side side, std::size_t taken, std::int32_t key) {
  std::size_t ties = taken - count_above(v, n, side, key);  // of these are taken already
  for (std::size_t i = 0; i < n; ++i)
    if (key_of(v[i], side) == key && ties-- == 0) return i;
  return n;
}

// Gives the value left over to the sign whose next value is larger; of equal ones to the first in memory.
static void settle_left_over(const float* v, std::size_t n, Counts exist, std::int32_t floor, Shares& shares) {
  const std::int32_t positive =
      shares.positive < exist.positive ? threshold_of(v, n, kPositive, shares.positive + 1, floor, false) : 0;
  const std::int32_t negative =
      shares.negative < exist.negative ? threshold_of(v, n, kNegative, shares.negative + 1, floor, false) : 0;
  const bool first = positive > negative ||
                     (positive == negative && place_of_next(v, n, kPositive, shares.positive, positive) <
                                                  place_of_next(v, n, kNegative, shares.negative, negative));
  ++(first ? shares.positive : shares.negative);
  shares.left_over = false;
}

// A floor that the needed values of a column just reach.
static std::int32_t floor_of(const float* v, std::size_t n, const Shares& shares, Counts exist) {
  const std::size_t positive = shares.needed(false, exist.positive), negative = shares.needed(true, exist.negative);
  std::int32_t floor = kMagnitude;
  if (positive) floor = threshold_of(v, n, shares.joint ? kBothSigns : kPositive, positive, 1, true);
  if (negative) {
    const std::int32_t other = threshold_of(v, n, kNegative, negative, 1, true);
    floor = other < floor ? other : floor;
  }
  return floor;
}

struct Threshold {
  std::uint32_t bits = ~0u;  // none stays
  std::int64_t ties = 0;
};

static Threshold final_threshold(const float* v, std::size_t n, Side side, std::size_t k, std::int32_t floor) {
  if (k == 0) return {};
  const std::int32_t threshold = threshold_of(v, n, side, k, floor, true);
  const std::size_t above = count_above(v, n, side, threshold);
  return {static_cast<std::uint32_t>(threshold), static_cast<std::int64_t>(k - above)};
}

// What one column after the other uses; it lives on the stack.
struct ColumnScratch {
  std::int32_t guess = kMagnitude;
  float formed[kTallestColumn];
  std::uint32_t index[kTallestColumn + kFindSlack];
  float value[kTallestColumn];
};

static std::size_t find_candidates(const float* v, std::size_t n, std::int32_t floor, ColumnScratch& scratch) {
  const std::size_t count = find(v, n, static_cast<std::uint32_t>(floor), 0, scratch.index);
  for (std::size_t i = 0; i < count; ++i) scratch.value[i] = v[scratch.index[i]];
  return count;
}

// Leaves the k largest values of a column in the scratch; returns how many they are.
static std::size_t select_column(const float* v, std::size_t n, std::size_t k, bool joint, ColumnScratch& scratch) {
  const Counts exist = count_keys(v, n, joint);
  if (exist.positive + exist.negative == 0) return 0;
  Shares shares = shares_of(exist, k, joint);
  if (joint) shares = {true, k < exist.positive ? k : exist.positive, 0, false};

  std::int32_t floor = scratch.guess;
  std::size_t count = find_candidates(v, n, floor, scratch);
  const Counts candidates = count_keys(scratch.value, count, joint);
  if (candidates.positive < shares.needed(false, exist.positive) ||
      candidates.negative < shares.needed(true, exist.negative)) {
    floor = floor_of(v, n, shares, exist);
    count = find_candidates(v, n, floor, scratch);
  }

  if (shares.left_over) settle_left_over(scratch.value, count, exist, floor, shares);
  const Threshold positive =
      final_threshold(scratch.value, count, joint ? kBothSigns : kPositive, shares.positive, floor);
  const Threshold negative =
      joint ? positive : final_threshold(scratch.value, count, kNegative, shares.negative, floor);
  const std::uint32_t lower = positive.bits < negative.bits ? positive.bits : negative.bits;
  constexpr std::uint32_t kQuarterOctave = 1u << 21;
  scratch.guess = static_cast<std::int32_t>(lower > kQuarterOctave ? lower - kQuarterOctave : 1);
  std::int64_t ties[2] = {positive.ties, negative.ties};
  return keep(scratch.index, scratch.value, count, positive.bits, negative.bits, ties, joint);
}

// Appends the selected values of each column, with `first` added to their indices; forms v into r if it is given.
// Returns how many, or -1 if a value is not finite: being the largest, one such value of a column is always selected.
static std::int64_t select_columns(const float* x, const float* e, float* r, std::size_t n, const Grid& grid,
                                   std::size_t pi, bool separate, std::uint32_t first, std::uint32_t* index,
                                   float* value) {
  ColumnScratch scratch;
  std::int64_t total = 0;
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    const std::size_t begin = unit.begin, height = unit.height();
    const float* v = formed(x + begin, e ? e + begin : nullptr, r ? r + begin : nullptr, scratch.formed, height);
    const std::size_t count = select_column(v, height, share_of(height, pi), !separate, scratch);
    for (std::size_t i = 0; i < count; ++i) {
      if (!is_finite(scratch.value[i])) return -1;
      index[total] = first + static_cast<std::uint32_t>(begin) + scratch.index[i];
      value[total++] = scratch.value[i];
    }
  }
  return total;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
