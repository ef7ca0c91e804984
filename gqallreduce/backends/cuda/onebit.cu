// One-bit quantization (onebit_wire.hpp says what is sent): a team per column. It stages the values, whose signs its
// warps ballot into words of bits and whose sums of either sign its first warp adds by the sum rule.
#include "block.hpp"
#include "gq/onebit_wire.hpp"
#include "gq/wire.hpp"
#include "team.hpp"
#include "units.hpp"

namespace gq {
namespace device {

constexpr unsigned kSquare = kWarp * kWarp;  // values of 32 rows

// The signs of the tile's n values; as many bytes as hold them are written. A warp takes 32 rows at a time, each lane
// keeps a row's word, and all are written side by side.
static inline void write_signs(const Team& team, unsigned n, std::uint8_t* bits) {
  for (unsigned begin = team.rank / kWarp * kSquare; begin < n; begin += team.size * kWarp) {
    const unsigned left = n - begin;
    std::uint32_t word = 0;
    for (unsigned row = 0; row < kWarp && row * kWarp < left; ++row) {
      const unsigned i = row * kWarp + lane_index();
      const std::uint32_t signs = ballot(i < left && team.tile[begin + i] >= 0.0f);
      if (lane_index() == row) word = signs;
    }
    const unsigned at = lane_index() * kWarp;
    if (at >= left) continue;
    store_bytes(bits + begin / 8 + at / 8, word, left - at < kWarp ? (left - at + 7) / 8 : 4);
  }
}

// Adds the tile's n values of either sign and counts those that are not negative, for the threads of the first warp.
static inline void add_signs(const Team& team, unsigned n, SignSums& sums) {
  double positive = 0.0, negative = 0.0;
  std::uint32_t count = 0;
  by_rows(team, n, [&](float v) {
    if (v >= 0.0f) {
      positive += static_cast<double>(v);
      ++count;
    } else {
      negative += static_cast<double>(v);
    }
  });
  sums.positive += fold(positive);
  sums.negative += fold(negative);
  sums.positive_count += warp_sum(count);
}

static inline float mean_of(const SignMeans& means, float v) { return v >= 0.0f ? means.positive : means.negative; }

// Signs and means of a column; where it is no more than a tile, its values stay staged.
static inline SignMeans read_column(Team& team, const float* x, const float* e, std::size_t n, std::uint8_t* bits) {
  SignSums sums;
  for (std::size_t done = 0; done < n; done += team.capacity) {
    const unsigned count = n - done < team.capacity ? static_cast<unsigned>(n - done) : team.capacity;
    if (done > 0) team.sync();
    team.stage(x + done, e ? e + done : e, count);
    write_signs(team, count, bits + done / 8);
    if (team.in_first_warp()) add_signs(team, count, sums);
  }
  SignMeans means = {};
  if (team.leads()) means = means_of(sums, n);
  return team.tell(means);
}

static inline void write_errors(const Team& team, const float* x, const float* e, float* r, std::size_t n,
                                const SignMeans& means) {
  for (std::size_t done = 0; done < n; done += team.capacity) {
    const unsigned count = n - done < team.capacity ? static_cast<unsigned>(n - done) : team.capacity;
    // Each thread reads what it staged itself.
    if (n > team.capacity) team.stage(x + done, e ? e + done : e, count);
    for (unsigned i = 4 * team.rank; i < count; i += 4 * team.size) {
      Four<float> v = team.staged(i, count);
      for (float& number : v.number) number -= mean_of(means, number);
      store_four(r + done + i, v, count - i);
    }
  }
}

}  // namespace device
}  // namespace gq

using namespace gq;
using namespace gq::device;

// e and r may be null. Blocks of 128 threads, `teams` columns each.
GQ_KERNEL GQ_THREADS(kTeamThreads, 8)
    onebit_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::uint64_t n, std::uint64_t start,
                  std::uint64_t run, std::uint64_t parts, unsigned teams, std::uint32_t* status) {
  GQ_SHARED Shared shared;
  const Grid grid = {start, run, parts};
  const GridUnit unit(grid, n, team_number(teams));
  if (!unit.exists) return;
  Team team(shared, teams);
  x += unit.begin;
  if (e) e += unit.begin;
  wire += unit.offset(grid, n, onebit_column_nbytes);
  const SignMeans means = read_column(team, x, e, unit.height(), wire + kOnebitHeader);
  if (!is_finite(means.positive) || !is_finite(means.negative)) {
    if (team.leads()) atomic_or(status, kNotFinite);
    return;
  }
  if (team.leads()) {
    store(wire, means.positive);
    store(wire + sizeof(float), means.negative);
  }
  if (r) write_errors(team, x, e, r + unit.begin, unit.height(), means);
}

// y = scale * wire, or y += wire. The wire holds the region's bytes exactly: the caller has checked it.
GQ_KERNEL onebit_decode(const std::uint8_t* wire, float* y, std::uint64_t n, std::uint64_t start, std::uint64_t run,
                        std::uint64_t parts, float scale, int add, unsigned teams, std::uint32_t* status) {
  const Grid grid = {start, run, parts};
  const GridUnit unit(grid, n, team_number(teams));
  if (!unit.exists) return;
  wire += unit.offset(grid, n, onebit_column_nbytes);
  const float positive = load<float>(wire), negative = load<float>(wire + sizeof(float));
  const unsigned size = kTeamThreads / teams, rank = thread_index() % size;
  if (!is_finite(positive) || !is_finite(negative)) {
    if (rank == 0) atomic_or(status, kMalformed);
    return;
  }
  const SignMeans means = {positive * (add ? 1.0f : scale), negative * (add ? 1.0f : scale)};
  for (std::size_t i = 4 * rank; i < unit.height(); i += 4 * size) {
    const unsigned bits = wire[kOnebitHeader + i / 8] >> i % 8;
    Four<float> v;
    for (unsigned k = 0; k < 4; ++k) v.number[k] = bits >> k & 1 ? means.positive : means.negative;
    put_four(y + unit.begin + i, v, unit.height() - i, add);
  }
}
