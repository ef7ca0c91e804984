// How many values each side keeps, and down to which magnitude: of a whole vector by histograms whose digits `Search`
// collects, of one column bit by bit.
//
// With separate signs k is split in proportion, rounded down. If one is left over, both sides are searched for one more
// than their share: the larger of the two candidates stays, of equal ones the first in memory.
#pragma once
#include "adaptive_parts.hpp"
#include "scan.hpp"

namespace gq {
namespace device {

constexpr unsigned kBins = 1 << 12, kLastBins = 1 << 7;  // of a side
constexpr unsigned kHistogramThreads = 512;              // of a block
constexpr unsigned kAtOnce = 2;  // fours that a thread has on their way before it needs the first

// Bins of a block, in shared memory: so many of each side. They are zeros when the block has met.
static inline void clear_bins(std::uint32_t* bins, unsigned count, unsigned sides) {
  for (unsigned bin = thread_index(); bin < sides * count; bin += threads_per_block()) bins[bin] = 0;
  block_barrier();
}

// Adds them to a table, which has kBins for each side.
static inline void add_bins(const std::uint32_t* bins, unsigned count, unsigned sides, std::uint32_t* table) {
  block_barrier();
  for (unsigned bin = thread_index(); bin < sides * count; bin += threads_per_block())
    if (bins[bin] > 0) atomic_add(&table[bin < count ? bin : kBins + bin - count], bins[bin]);
}

// The number of a warp in the grid, and how many there are.
static inline std::size_t warp_number() {
  return (std::size_t(block_index()) * threads_per_block() + thread_index()) / kWarp;
}
static inline std::size_t warps_of_grid() { return std::size_t(blocks_per_grid()) * threads_per_block() / kWarp; }

// The room that a unit has in a list of a span's values: for one in sixteen.
class List {
 public:
  static constexpr unsigned kOneOf = 16;

  List(float* listed, const SpanUnit& unit)
      : value_(listed + unit.begin / kOneOf), room_(static_cast<unsigned>(unit.end / kOneOf - unit.begin / kOneOf)) {}

  void put(unsigned place, float v) const {
    if (place < room_) value_[place] = v;
  }

 private:
  float* value_;
  unsigned room_;
};

// A unit's values that agree with the first digits of a search: those listed, or all where there was no room.
struct Listed {
  const float* v;
  std::size_t n;
  bool all;

  Listed(const float* listed, const SpanUnit& unit, std::uint32_t found, const float* span)
      : v(listed + unit.begin / List::kOneOf),
        n(found),
        all(found > unit.end / List::kOneOf - unit.begin / List::kOneOf) {
    if (!all) return;
    v = span + unit.begin;
    n = unit.height();
  }
};

// What is known of the k-th magnitudes: the digits found so far, how many of the values that agree with them may still
// be kept, whether one of the sides keeps one less (not known yet which), and the number of the next entry.
struct Search {
  Pair prefix, left;
  std::uint32_t contested, entries;
};

// What each side is searched for, of so many nonzero values.
struct Wanted {
  Pair count;
  bool contested;
};

static inline Wanted wanted_of(const Pair& nonzero, std::size_t k, unsigned sides) {
  const std::uint64_t all = std::uint64_t(nonzero.zero) + nonzero.one;
  if (k > all) k = all;
  if (sides == 1 || k == 0) return {{static_cast<std::uint32_t>(k), 0}, false};
  const auto zero = static_cast<std::uint32_t>(k * nonzero.zero / all);
  const auto one = static_cast<std::uint32_t>(k * nonzero.one / all);
  const bool contested = zero + one < k;  // then both sides have more than their share
  return {{zero + contested, one + contested}, contested};
}

static inline Search begun_search(const Wanted& wanted) {
  return {
      {wanted.count.zero ? 0 : kUnreachable, wanted.count.one ? 0 : kUnreachable}, wanted.count, wanted.contested, 0};
}

// The side that does not keep the value left over has one less.
static inline void settle(Pair& left, bool zero_wins) {
  left.zero -= !zero_wins;
  left.one -= zero_wins;
}

// Two counts of at most 2^32 - 1 in one word.
static inline std::uint64_t packed(const Pair& pair) { return pair.zero | std::uint64_t(pair.one) << 32; }
static inline Pair unpacked(std::uint64_t word) {
  return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
}

// One column's values for its team: staged if they are no more than a tile.
struct ColumnValues {
  const float* v;
  std::size_t n;
  unsigned sides;
};

// How many of each side's values are chosen(place, magnitude, side).
template <class Chosen>
static inline Pair count_chosen(Team& team, const ColumnValues& column, Chosen chosen) {
  std::uint32_t counts = 0;  // in halves
  for (std::size_t i = team.rank; i < column.n; i += team.size) {
    const bool side = side_of(column.v[i], column.sides);
    if (chosen(i, magnitude(column.v[i]), side)) counts += 1u << 16 * side;
  }
  return of_halves(team.sum(counts));
}

static inline Pair count_above(Team& team, const ColumnValues& column, const Pair& bound) {
  return count_chosen(team, column, [&](std::size_t, std::uint32_t key, bool side) { return key > bound[side]; });
}

// The same of a column that is staged, each thread's share of it in registers: the bits, without the sign if all are
// on one side. They are counted some thirty times.
struct StagedValues : ColumnValues {
  static constexpr unsigned kOwn = kTile / kTeamThreads;
  std::uint32_t own[kOwn];

  StagedValues(const Team& team, std::size_t n, unsigned sides) : ColumnValues{team.tile, n, sides} {
    GQ_UNROLL
    for (unsigned k = 0; k < kOwn; ++k) {
      const std::size_t i = team.rank + k * team.size;
      own[k] = i < n ? sides == 2 ? bits_of(v[i]) : magnitude(v[i]) : 0;
    }
  }
};

static inline Pair count_above(Team& team, const StagedValues& column, const Pair& bound) {
  const std::uint32_t zero = bound.zero & kMagnitude;  // which no value exceeds, as a signed number, that is negative
  const std::uint32_t one = bound.one | ~kMagnitude;   // and this none that is not
  std::uint32_t counts = 0;                            // in halves
  if (column.sides == 1) {
    GQ_UNROLL
    for (unsigned k = 0; k < StagedValues::kOwn; ++k) counts += (zero - column.own[k]) >> 31;
  } else {
    GQ_UNROLL
    for (unsigned k = 0; k < StagedValues::kOwn; ++k) {
      if (static_cast<std::int32_t>(column.own[k]) > static_cast<std::int32_t>(zero)) counts += 1;
      if (column.own[k] > one) counts += 1u << 16;
    }
  }
  return of_halves(team.sum(counts));
}

// The wanted-th magnitude of each side, bit by bit; so many exist. Unless it must be exact any will do that no others
// reach: all that equal it are wanted then.
template <class Column>
static inline Pair thresholds_of(Team& team, const Column& column, const Pair& wanted, bool exact) {
  Pair found = {0, 0};
  bool zero_done = wanted.zero == 0, one_done = wanted.one == 0;
  for (std::uint32_t bit = 1u << 30; bit > 0 && (exact || !zero_done || !one_done); bit >>= 1) {
    const Pair reaching = count_above(team, column, {(found.zero | bit) - 1, (found.one | bit) - 1});
    if (reaching.zero >= wanted.zero) found.zero |= bit;
    if (reaching.one >= wanted.one) found.one |= bit;
    zero_done |= reaching.zero == wanted.zero;
    one_done |= reaching.one == wanted.one;
  }
  return {wanted.zero ? found.zero : kUnreachable, wanted.one ? found.one : kUnreachable};
}

// The place of each side's wanted-th value that equals its threshold: as many less one lie before it.
static inline Pair places_of(Team& team, const ColumnValues& column, const Pair& threshold, const Pair& wanted) {
  Pair place = {0, 0};
  for (std::uint32_t bit = 1u << 14; bit > 0; bit >>= 1) {
    const Pair tried = {place.zero | bit, place.one | bit};
    const Pair before = count_chosen(team, column, [&](std::size_t i, std::uint32_t key, bool side) {
      return i < tried[side] && key == threshold[side];
    });
    if (before.zero < wanted.zero) place.zero = tried.zero;
    if (before.one < wanted.one) place.one = tried.one;
  }
  return place;
}

// What a column keeps if it keeps k values.
struct Cut {
  Pair threshold, ties;
  std::uint32_t above;
};

template <class Column>
static inline Cut cut_column(Team& team, const Column& column, std::size_t k) {
  const Wanted wanted = wanted_of(count_above(team, column, {0, 0}), k, column.sides);
  const Pair threshold = thresholds_of(team, column, wanted.count, wanted.contested);
  const Pair above = count_above(team, column, threshold);
  Pair ties = {wanted.count.zero - above.zero, wanted.count.one - above.one};
  if (wanted.contested) {
    bool zero_wins = threshold.zero > threshold.one;
    if (threshold.zero == threshold.one) {
      const Pair place = places_of(team, column, threshold, ties);
      zero_wins = place.zero < place.one;
    }
    settle(ties, zero_wins);
  }
  return {threshold, ties, above.zero + above.one};
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

constexpr unsigned kOwnUnits = 4;  // of each thread of a scan
constexpr std::size_t kUnitsAtOnce = kScanThreads * kOwnUnits;

// The pairs of a thread's units; those from the last unit on are zeros.
struct OwnPairs {
  Four<std::uint32_t> zero, one;

  static OwnPairs load(const std::uint32_t* numbers, std::size_t begin, std::size_t units, unsigned sides) {
    const std::size_t n = units * sides;
    const Four<std::uint32_t> a = four_of(numbers, begin * sides, n);
    if (sides == 1) return {a, {}};
    const Four<std::uint32_t> b = four_of(numbers, begin * sides + 4, n);
    return {{{a.number[0], a.number[2], b.number[0], b.number[2]}},
            {{a.number[1], a.number[3], b.number[1], b.number[3]}}};
  }

  void store(std::uint32_t* numbers, std::size_t begin, std::size_t units, unsigned sides) const {
    if (sides == 1) return put_own(numbers, begin, units, zero);
    const Four<std::uint32_t> a = {{zero.number[0], one.number[0], zero.number[1], one.number[1]}};
    const Four<std::uint32_t> b = {{zero.number[2], one.number[2], zero.number[3], one.number[3]}};
    put_own(numbers, begin * 2, units * 2, a);
    put_own(numbers, begin * 2 + 4, units * 2, b);
  }

  static void put_own(std::uint32_t* numbers, std::size_t begin, std::size_t n, const Four<std::uint32_t>& four) {
    if (begin < n) store_four(numbers + begin, four, n - begin);
  }
};

// How many may still be kept when those `seen` have had their turn, and how many of the `equal` that come then stay.
static inline std::uint32_t remaining(std::uint32_t left, std::uint32_t seen) { return left > seen ? left - seen : 0; }
static inline Pair remaining(const Pair& left, const Pair& seen) {
  return {remaining(left.zero, seen.zero), remaining(left.one, seen.one)};
}
static inline Pair given_of(const Pair& left, const Pair& seen, const Pair& equal) {
  const Pair still = remaining(left, seen);
  return {equal.zero < still.zero ? equal.zero : still.zero, equal.one < still.one ? equal.one : still.one};
}

struct ScanShared {
  ScanWords words;
  std::uint32_t place[2], still[2];
};

// Does side 0's still-th value that equals the threshold come first? For a block of 1024 threads, of a unit that holds
// both. All have read the places that are written here when the first scan is over.
static inline bool zero_first(ScanShared& shared, const float* v, std::size_t n, std::uint32_t threshold,
                              const Pair& still) {
  std::uint64_t seen = 0;
  for (std::size_t row = 0; row < n; row += kScanThreads) {
    const std::size_t i = row + thread_index();
    const bool equal = i < n && magnitude(v[i]) == threshold, side = equal && side_of(v[i], 2);
    std::uint64_t total;
    const std::uint64_t before = scan_block(shared.words, equal ? packed({!side, side}) : 0, total);
    if (equal && unpacked(seen + before)[side] + 1 == still[side]) shared.place[side] = static_cast<std::uint32_t>(i);
    seen += total;
  }
  block_barrier();
  return shared.place[0] < shared.place[1];
}

// Settles a contested search as soon as the units at hand hold the last tie of a side: `equal` are the ties of a
// thread's units, in halves, `before` those of the threads before, `total` those of all, packed. unit_at(number) is a
// unit at hand.
template <class UnitAt>
static inline void settle_by_place(ScanShared& shared, const float* v, Search& search, const std::uint32_t* equal,
                                   std::uint64_t before, std::uint64_t total, UnitAt unit_at) {
  const bool zero_ends = unpacked(total).zero >= search.left.zero, one_ends = unpacked(total).one >= search.left.one;
  if (!zero_ends && !one_ends) return;
  search.contested = false;
  if (!zero_ends || !one_ends) return settle(search.left, zero_ends);
  GQ_UNROLL
  for (unsigned k = 0; k < kOwnUnits; ++k) {
    for (int side = 0; side < 2; ++side) {
      const std::uint32_t still = remaining(search.left[side], unpacked(before)[side]);
      if (still == 0 || still > of_halves(equal[k])[side]) continue;
      shared.place[side] = thread_index() * kOwnUnits + k;
      shared.still[side] = still;
    }
    before += packed(of_halves(equal[k]));
  }
  block_barrier();
  const std::uint32_t zero = shared.place[0], one = shared.place[1];
  const Pair still = {shared.still[0], shared.still[1]};
  if (zero != one) return settle(search.left, zero < one);
  const SpanUnit unit = unit_at(zero);
  settle(search.left, zero_first(shared, v + unit.begin, unit.height(), search.prefix.zero, still));
}

}  // namespace device
}  // namespace gq
