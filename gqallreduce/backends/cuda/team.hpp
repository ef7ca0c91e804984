// A team: the threads that work on one unit (a column or a bucket), and the shared memory where its values are staged.
//
// A block of 128 threads is one team, or, where no unit is taller than 1024, four teams of one warp. A team stages a
// tile of v = x + e by 128-bit accesses; what comes after works on the tile. A block's tile is a block of the sum rule
// (sum.hpp), whose lanes are those of the team's first warp.
#pragma once
#include "block.hpp"
#include "fours.hpp"
#include "gq/sum.hpp"

namespace gq {
namespace device {

constexpr unsigned kTeamThreads = 128;
constexpr unsigned kWarps = kTeamThreads / kWarp;
constexpr unsigned kTile = 4096;  // of a block; a quarter of it for each of four warps
static_assert(kTile == kSumBlock, "a tile of a block is a block of the sum rule");

struct Shared {
  alignas(16) float tile[kTile];
  std::uint64_t word[2][kWarps];  // what threads tell each other, in turns
};

class Team {
 public:
  const unsigned rank, size;  // of this thread, among so many
  const unsigned capacity;    // values in a tile
  float* const tile;

  Team(Shared& shared, unsigned teams)
      : rank(thread_index() % (kTeamThreads / teams)),
        size(kTeamThreads / teams),
        capacity(kTile / teams),
        tile(shared.tile + number(teams) * capacity),
        shared_(shared),
        first_warp_(thread_index() / size * (size / kWarp)) {}

  static unsigned number(unsigned teams) { return thread_index() / (kTeamThreads / teams); }

  bool leads() const { return rank == 0; }
  bool in_first_warp() const { return rank < kWarp; }

  void sync() const {
    if (size == kWarp)
      warp_barrier();
    else
      block_barrier();
  }

  // tile = x + e; the team has met before (no thread reads the tile any more) and meets after.
  void stage(const float* x, const float* e, unsigned n) const {
    const bool aligned = fits_four<float>(x) && fits_four<float>(e);
    const unsigned at_once = kAtOnce * 4 * size;
    unsigned i = 4 * rank;
    for (unsigned left = n; aligned && left >= at_once; left -= at_once, i += at_once)
      stage_fours(fours(x + i), e ? fours(e + i) : nullptr, reinterpret_cast<Four<float>*>(tile + i));
    for (; i < n; i += 4 * size) *reinterpret_cast<Four<float>*>(tile + i) = load_sum(x + i, e ? e + i : e, n - i);
    sync();
  }

  // Four of n staged values, from a multiple of four on; what lies behind the last is zero.
  Four<float> staged(unsigned i, unsigned n) const {
    Four<float> v = *reinterpret_cast<const Four<float>*>(tile + i);
    if (i + 4 > n)
      for (unsigned k = 0; k < 4; ++k) v.number[k] = i + k < n ? v.number[k] : 0.0f;
    return v;
  }

  // The leader's value, to all.
  template <class Value>
  Value tell(Value value) {
    static_assert(sizeof(Value) <= sizeof(std::uint64_t), "one word");
    std::uint64_t* const word = &shared_.word[turn_][first_warp_];
    turn_ ^= 1;  // who writes this word again has met all that read it, at the next turn
    if (leads()) memcpy(word, &value, sizeof value);
    sync();
    memcpy(&value, word, sizeof value);
    return value;
  }

  // The largest of all threads' values, to all.
  std::uint32_t largest(std::uint32_t value) {
    return combined(value, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
  }

  std::uint32_t sum(std::uint32_t value) {
    return combined(value, [](std::uint32_t a, std::uint32_t b) { return a + b; });
  }

 private:
  static constexpr unsigned kAtOnce = 2;  // fours that a thread has on their way before it needs the first

  static const Four<float>* fours(const float* numbers) { return reinterpret_cast<const Four<float>*>(numbers); }

  void stage_fours(const Four<float>* x, const Four<float>* e, Four<float>* target) const {
    Four<float> v[kAtOnce], residual[kAtOnce];
    GQ_UNROLL
    for (unsigned k = 0; k < kAtOnce; ++k) {
      v[k] = x[k * size];
      if (e) residual[k] = e[k * size];
    }
    GQ_UNROLL
    for (unsigned k = 0; k < kAtOnce; ++k) {
      for (unsigned j = 0; e && j < 4; ++j) v[k].number[j] += residual[k].number[j];
      target[k * size] = v[k];
    }
  }

  template <class Combine>
  std::uint32_t combined(std::uint32_t value, Combine combine) {
    for (unsigned width = kWarp / 2; width > 0; width /= 2)
      value = combine(value, from_lane(value, lane_index() ^ width));
    std::uint64_t* const word = shared_.word[turn_];
    turn_ ^= 1;
    if (lane_index() == 0) word[thread_index() / kWarp] = value;
    sync();
    value = static_cast<std::uint32_t>(word[first_warp_]);
    GQ_UNROLL
    for (unsigned warp = 1; warp < kWarps; ++warp)
      if (warp < size / kWarp) value = combine(value, static_cast<std::uint32_t>(word[first_warp_ + warp]));
    return value;
  }

  Shared& shared_;
  const unsigned first_warp_;
  unsigned turn_ = 0;
};

// The number of a team in the grid.
static inline std::size_t team_number(unsigned teams) {
  return std::size_t(block_index()) * teams + Team::number(teams);
}

// The lanes of a warp folded by the sum rule; the result is in all lanes.
static inline double fold(double lane) {
  for (unsigned width = kWarp / 2; width > 0; width /= 2) lane += from_lane(lane, lane_index() + width);
  return from_lane(lane, 0);
}

// each(v) for the values of a tile of n that are this thread's of the first warp, in order; eight are read before the
// first is needed.
template <class Each>
static inline void by_rows(const Team& team, unsigned n, Each each) {
  constexpr unsigned kRows = 8;
  unsigned i = team.rank;
  for (unsigned left = n; left >= kRows * kWarp; left -= kRows * kWarp, i += kRows * kWarp) {
    float v[kRows];
    GQ_UNROLL
    for (unsigned k = 0; k < kRows; ++k) v[k] = team.tile[i + k * kWarp];
    GQ_UNROLL
    for (unsigned k = 0; k < kRows; ++k) each(v[k]);
  }
  for (; i < n; i += kWarp) each(team.tile[i]);
}

// The sum of v * v over a tile of n values, for the threads of the first warp.
static inline double tile_squares(const Team& team, unsigned n) {
  double lane = 0.0;
  if (!team.in_first_warp()) return lane;
  by_rows(team, n, [&lane](float v) { lane += static_cast<double>(v) * static_cast<double>(v); });
  return fold(lane);
}

// The largest magnitude that this thread has staged.
static inline std::uint32_t largest_staged(const Team& team, unsigned n) {
  std::uint32_t largest = 0;
  for (unsigned i = 4 * team.rank; i < n; i += 4 * team.size)
    for (const float v : team.staged(i, n).number) largest = magnitude(v) > largest ? magnitude(v) : largest;
  return largest;
}

// What the lanes of a warp have, together.
static inline std::uint32_t warp_sum(std::uint32_t value) {
  for (unsigned width = kWarp / 2; width > 0; width /= 2) value += from_lane(value, lane_index() ^ width);
  return value;
}

}  // namespace device
}  // namespace gq
