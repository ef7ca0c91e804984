// The largest values of each column: exactly max(1, height / pi) nonzero ones, fewer if fewer exist, ties in memory
// order. With separate signs they are split in proportion to the numbers of positive and negative values, rounded down;
// the value left over is the larger of the two that come next.
//
// The threshold of a column is a good guess for the next one: a little below it are all candidates. If the guess was
// too high, or there is none, an octave below the largest value is another. Among the candidates (or in the column, if
// both guesses were too high) the threshold is found by bisection over the bits of |v|.
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

// The most values that select_columns keeps.
static std::size_t select_bound(const Grid& grid, std::size_t n, std::size_t pi) {
  return total_of(grid, n, unit_count(grid, n), [pi](std::size_t height) { return share_of(height, pi); });
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

// How many values of a column each sign keeps.
struct Shares {
  std::size_t positive, negative;
  std::size_t left_over;  // 1 if one more is kept, of the sign whose next value is larger
};

static Shares shares_of(const float* v, std::size_t n, std::size_t k) {
  const std::size_t all = count_above(v, n, kBothSigns, 0);
  const std::size_t positives = count_above(v, n, kPositive, 0), negatives = all - positives;
  if (all <= k) return {positives, negatives, 0};
  const std::size_t positive = k * positives / all, negative = k * negatives / all;
  return {positive, negative, k - positive - negative};
}

// The `taken` largest values of a side: all above the threshold, and the first in memory of those equal to it.
struct Cut {
  std::int32_t threshold;
  std::size_t taken;
};

// Cuts off k values, of which at least k have keys >= floor >= 1.
static Cut cut(const float* v, std::size_t n, Side side, std::size_t k, std::int32_t floor) {
  if (k == 0) return {kMagnitude, 0};
  const std::int32_t largest = largest_key(v, n, side);
  if (k == 1 || largest == floor) return {largest, k};
  int bit = 31 - __builtin_clz(static_cast<unsigned>(floor ^ largest));
  std::int32_t threshold = largest >> bit >> 1 << bit << 1;  // the upper bits that floor and largest share
  for (; bit >= 0; --bit) {
    const std::int32_t higher = threshold | 1 << bit;
    const std::size_t count = count_above(v, n, side, higher - 1);
    if (count >= k) threshold = higher;
    if (count == k) break;
  }
  return {threshold, k};
}

static std::int32_t lower(Cut a, Cut b) { return a.threshold < b.threshold ? a.threshold : b.threshold; }

// How many of the values equal to the threshold are taken.
static std::int64_t ties_of(const float* v, std::size_t n, Side side, Cut cut) {
  return static_cast<std::int64_t>(cut.taken) - static_cast<std::int64_t>(count_above(v, n, side, cut.threshold));
}

// The largest key that a cut leaves; 0 if it leaves none.
static std::int32_t next_key(const float* v, std::size_t n, Side side, Cut cut) {
  if (count_above(v, n, side, cut.threshold - 1) > cut.taken) return cut.threshold;
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t key = key_of(v[i], side);
    largest = key < cut.threshold && key > largest ? key : largest;
  }
  return largest;
}

// The place of the first value that has the key `next` and is not taken.
static std::size_t next_place(const float* v, std::size_t n, Side side, Cut cut, std::int32_t next) {
  std::int64_t taken = next == cut.threshold ? ties_of(v, n, side, cut) : 0;
  for (std::size_t i = 0; i < n; ++i)
    if (key_of(v[i], side) == next && taken-- == 0) return i;
  return n;
}

// Takes one value more: of the sign whose next value is larger, of equal ones the first in memory.
static void take_left_over(const float* v, std::size_t n, Cut& positive, Cut& negative) {
  const std::int32_t up = next_key(v, n, kPositive, positive), down = next_key(v, n, kNegative, negative);
  bool first = up > down;
  if (up == down) first = next_place(v, n, kPositive, positive, up) < next_place(v, n, kNegative, negative, down);
  if (first)
    positive = {up, positive.taken + 1};
  else
    negative = {down, negative.taken + 1};
}

// What one column after the other uses; it lives on the stack. The candidates are followed by zeros up to a multiple of
// 16, which no count sees and which spare the loops over them a remainder.
struct ColumnScratch {
  std::int32_t guess = kMagnitude;
  std::size_t count = 0, padded = 0;  // candidates; with their zeros
  float formed[kTallestColumn];
  std::uint32_t index[kTallestColumn + kFindSlack];
  float value[kTallestColumn + 16];
};

static void find_candidates(const float* v, std::size_t n, std::int32_t floor, ColumnScratch& scratch) {
  const std::size_t count = scratch.count = find(v, n, static_cast<std::uint32_t>(floor), 0, scratch.index);
  for (std::size_t i = 0; i < count; ++i) scratch.value[i] = v[scratch.index[i]];
  scratch.padded = (count + 15) / 16 * 16;
  for (std::size_t i = count; i < scratch.padded; ++i) scratch.value[i] = 0.0f;
}

// Leaves candidates that are `enough()` in the scratch, if a column has so many, and returns the floor of their keys:
// by the guess, by the one below `largest()`, or `exact()`.
template <class Enough, class Largest, class Exact>
static std::int32_t find_enough(const float* v, std::size_t n, ColumnScratch& scratch, Enough enough, Largest largest,
                                Exact exact) {
  std::int32_t floor = scratch.guess;
  find_candidates(v, n, floor, scratch);
  if (enough()) return floor;
  constexpr std::int32_t kOctave = 1 << 23;
  const std::int32_t below = largest() - kOctave;
  if (below > 0) {
    find_candidates(v, n, below, scratch);
    if (enough()) return below;
  }
  floor = exact();
  find_candidates(v, n, floor, scratch);
  return floor;
}

// A little below the last threshold: a quarter of an octave.
static std::int32_t guess_below(std::int32_t threshold) {
  constexpr std::int32_t kQuarterOctave = 1 << 21;
  return threshold > kQuarterOctave ? threshold - kQuarterOctave : 1;
}

// Each of the following leaves the k largest values of a column in the scratch and returns how many they are.

static std::size_t select_one(const float* v, std::size_t n, ColumnScratch& scratch) {
  const std::int32_t largest = largest_key(v, n, kBothSigns);
  if (largest == 0) return 0;
  find(v, n, static_cast<std::uint32_t>(largest), 0, scratch.index);
  scratch.value[0] = v[scratch.index[0]];
  return 1;
}

static std::size_t select_joint(const float* v, std::size_t n, std::size_t k, ColumnScratch& scratch) {
  const auto enough = [&] { return scratch.count >= k; };
  const auto largest = [&] { return largest_key(v, n, kBothSigns); };
  const auto exact = [&] {
    const std::size_t all = count_above(v, n, kBothSigns, 0);
    k = k < all ? k : all;
    return k ? cut(v, n, kBothSigns, k, 1).threshold : kMagnitude;
  };
  const std::int32_t floor = find_enough(v, n, scratch, enough, largest, exact);
  if (k == 0) return 0;
  const Cut last = cut(scratch.value, scratch.padded, kBothSigns, k, floor);
  scratch.guess = guess_below(last.threshold);
  std::int64_t ties[2] = {ties_of(scratch.value, scratch.padded, kBothSigns, last), 0};
  const auto bits = static_cast<std::uint32_t>(last.threshold);
  return keep(scratch.index, scratch.value, scratch.count, bits, bits, ties, true);
}

static std::size_t select_separate(const float* v, std::size_t n, std::size_t k, ColumnScratch& scratch) {
  const Shares shares = shares_of(v, n, k);
  // What must be among the candidates. So many exist: a value is left over only if both signs exist and k is less than
  // all, and then each share is less than its sign has.
  const std::size_t positives = shares.positive + shares.left_over, negatives = shares.negative + shares.left_over;
  if (positives + negatives == 0) return 0;
  const auto enough = [&] {
    return count_above(scratch.value, scratch.padded, kPositive, 0) >= positives &&
           count_above(scratch.value, scratch.padded, kNegative, 0) >= negatives;
  };
  const auto largest = [&] {  // of the sign whose largest is smaller
    const std::int32_t up = positives ? largest_key(v, n, kPositive) : kMagnitude;
    const std::int32_t down = negatives ? largest_key(v, n, kNegative) : kMagnitude;
    return up < down ? up : down;
  };
  const auto exact = [&] { return lower(cut(v, n, kPositive, positives, 1), cut(v, n, kNegative, negatives, 1)); };
  const std::int32_t floor = find_enough(v, n, scratch, enough, largest, exact);
  Cut positive = cut(scratch.value, scratch.padded, kPositive, shares.positive, floor);
  Cut negative = cut(scratch.value, scratch.padded, kNegative, shares.negative, floor);
  if (shares.left_over) take_left_over(scratch.value, scratch.padded, positive, negative);
  scratch.guess = guess_below(lower(positive, negative));
  std::int64_t ties[2] = {ties_of(scratch.value, scratch.padded, kPositive, positive),
                          ties_of(scratch.value, scratch.padded, kNegative, negative)};
  return keep(scratch.index, scratch.value, scratch.count, static_cast<std::uint32_t>(positive.threshold),
              static_cast<std::uint32_t>(negative.threshold), ties, false);
}

static std::size_t select_column(const float* v, std::size_t n, std::size_t k, bool separate, ColumnScratch& scratch) {
  if (k == 1) return select_one(v, n, scratch);  // alike for joint and separate signs
  return separate ? select_separate(v, n, k, scratch) : select_joint(v, n, k, scratch);
}

// Copies what is selected, with `first` added to its indices; false if a value is not finite.
static bool copy_selected(const ColumnScratch& scratch, std::size_t count, std::uint32_t first, std::uint32_t* index,
                          float* value) {
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_finite(scratch.value[i])) return false;
    index[i] = first + scratch.index[i];
    value[i] = scratch.value[i];
  }
  return true;
}

// The k largest values of n <= kTallestColumn; forms v into r if it is given. Returns how many, or -1 if a value is not
// finite: being the largest, one such value is always selected.
static std::int64_t select_most(const float* x, const float* e, float* r, std::size_t n, std::size_t k, bool separate,
                                std::uint32_t* index, float* value) {
  ColumnScratch scratch;
  const std::size_t count = select_column(formed(x, e, r, scratch.formed, n), n, k, separate, scratch);
  return copy_selected(scratch, count, 0, index, value) ? static_cast<std::int64_t>(count) : -1;
}

// Appends the selected values of each column, with `first` added to their indices. Returns how many, or -1, as
// select_most.
static std::int64_t select_columns(const float* x, const float* e, float* r, std::size_t n, const Grid& grid,
                                   std::size_t pi, bool separate, std::uint32_t first, std::uint32_t* index,
                                   float* value) {
  ColumnScratch scratch;
  std::int64_t total = 0;
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    const std::size_t begin = unit.begin, height = unit.height();
    const float* v = formed(x + begin, e ? e + begin : nullptr, r ? r + begin : nullptr, scratch.formed, height);
    const std::size_t count = select_column(v, height, share_of(height, pi), separate, scratch);
    const std::uint32_t place = first + static_cast<std::uint32_t>(begin);
    if (!copy_selected(scratch, count, place, index + total, value + total)) return -1;
    total += static_cast<std::int64_t>(count);
  }
  return total;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
