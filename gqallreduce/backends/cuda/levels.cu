// Level codecs (levels.hpp says what is sent): a team per bucket. It stages the values, finds their norm, and then each
// thread rounds eight neighbours at a time, for which one Philox block has the bits and whose codes are whole bytes.
#include "block.hpp"
#include "draws.hpp"
#include "gq/levels_round.hpp"
#include "gq/levels_wire.hpp"
#include "team.hpp"
#include "units.hpp"

namespace gq {
namespace device {

static inline float level_of(const Levels& levels, int code) {
  return levels.uniform ? uniform_level(levels, code) : levels.value[code];
}

static inline float level_of(const Uniform&, const Levels& levels, int code) { return uniform_level(levels, code); }
static inline float level_of(const Tabled&, const Levels& levels, int code) { return levels.value[code]; }

// The norm of n values; where they are no more than a tile, they stay staged.
static inline float bucket_norm(Team& team, const float* x, const float* e, std::size_t n, bool l2) {
  double sum = 0.0;
  std::uint32_t largest = 0;
  for (std::size_t done = 0; done < n; done += team.capacity) {
    const unsigned count = n - done < team.capacity ? static_cast<unsigned>(n - done) : team.capacity;
    if (done > 0) team.sync();
    team.stage(x + done, e ? e + done : e, count);
    if (l2) {
      sum += tile_squares(team, count);
    } else {
      const std::uint32_t here = largest_staged(team, count);
      largest = here > largest ? here : largest;
    }
  }
  return l2 ? team.tell(static_cast<float>(square_root(sum))) : float_of(team.largest(largest));
}

// The codes of the tile's n values, which begin at a global index, and their errors in r, which may be null.
template <class Coder>
static inline void encode_tile(const Team& team, const Coder& coder, const Levels& levels, int bits, float norm,
                               unsigned n, const Stream& stream, std::uint64_t index, float* r, std::uint8_t* codes) {
  for (unsigned i = kEight * team.rank; i < n; i += kEight * team.size) {
    const Draws draws(stream, index + i);
    const Four<float> v[2] = {team.staged(i, n), team.staged(i + 4, n)};
    std::uint32_t half[2] = {0, 0};  // four codes each, of 32 bits at most
    GQ_UNROLL
    for (unsigned k = 0; k < kEight; ++k)
      half[k / 4] |= static_cast<std::uint32_t>(coder.code(v[k / 4].number[k % 4], draws[k])) << (k % 4 * bits);
    std::uint64_t word = half[0] | std::uint64_t(half[1]) << (4 * bits);
    unsigned nbytes = bits;
    if (n - i < kEight) {
      word &= (std::uint64_t(1) << ((n - i) * bits)) - 1;
      nbytes = static_cast<unsigned>(packed_size(n - i, bits));
    }
    store_bytes(codes + i / kEight * bits, word, nbytes);
    if (!r) continue;
    Four<float> error[2];
    GQ_UNROLL
    for (unsigned k = 0; k < kEight; ++k) {
      const int code = static_cast<int>(half[k / 4] >> (k % 4 * bits) & ((1u << bits) - 1));
      error[k / 4].number[k % 4] = v[k / 4].number[k % 4] - level_of(coder, levels, code) * norm;
    }
    store_four(r + i, error[0], n - i);
    if (n - i > 4) store_four(r + i + 4, error[1], n - i - 4);
  }
}

template <class Coder>
static inline void encode_bucket(const Team& team, const Levels& levels, float norm, const float* x, const float* e,
                                 float* r, std::uint8_t* codes, std::size_t n, const Stream& stream,
                                 std::uint64_t index) {
  const Coder coder(levels, norm);
  const int bits = levels.bits;
  for (std::size_t done = 0; done < n; done += team.capacity) {
    const unsigned count = n - done < team.capacity ? static_cast<unsigned>(n - done) : team.capacity;
    if (n > team.capacity) {
      team.sync();
      team.stage(x + done, e ? e + done : e, count);
    }
    encode_tile(team, coder, levels, bits, norm, count, stream, index + done, r ? r + done : r,
                codes + done / kEight * bits);
  }
}

}  // namespace device
}  // namespace gq

using namespace gq;
using namespace gq::device;

// Buckets of `bucket` values; e and r may be null. Blocks of 128 threads, `teams` buckets each.
GQ_KERNEL levels_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::uint64_t n,
                        const Levels* __restrict__ levels, int l2, std::uint64_t start, std::uint64_t bucket,
                        std::uint32_t key0, std::uint32_t key1, std::uint32_t hop, std::uint32_t encoder,
                        std::uint32_t step, unsigned teams, std::uint32_t* status) {
  GQ_SHARED Shared shared;
  const Grid grid = {start, bucket, 1};
  const GridUnit unit(grid, n, team_number(teams));
  if (!unit.exists) return;
  Team team(shared, teams);
  x += unit.begin;
  if (e) e += unit.begin;
  if (r) r += unit.begin;
  const int bits = levels->bits;
  wire += unit.offset(grid, n, [bits](std::size_t height) { return bucket_size(height, bits); });
  const float norm = bucket_norm(team, x, e, unit.height(), l2);
  if (!is_norm(norm) || (r && norm > kLargestWithError)) {
    if (team.leads()) atomic_or(status, kNotFinite);
    return;
  }
  if (team.leads()) store(wire, norm);
  const Stream stream = {key0, key1, hop, encoder, step};
  if (levels->uniform)
    encode_bucket<Uniform>(team, *levels, norm, x, e, r, wire + kNormBytes, unit.height(), stream, start + unit.begin);
  else
    encode_bucket<Tabled>(team, *levels, norm, x, e, r, wire + kNormBytes, unit.height(), stream, start + unit.begin);
}

// y = scale * wire, or y += wire. The wire holds the region's bytes exactly: the caller has checked it.
GQ_KERNEL levels_decode(const std::uint8_t* wire, float* y, std::uint64_t n, const Levels* __restrict__ levels,
                        std::uint64_t start, std::uint64_t bucket, float scale, int add, unsigned teams,
                        std::uint32_t* status) {
  const Grid grid = {start, bucket, 1};
  const GridUnit unit(grid, n, team_number(teams));
  if (!unit.exists) return;
  const int bits = levels->bits;
  wire += unit.offset(grid, n, [bits](std::size_t height) { return bucket_size(height, bits); });
  const float norm = load<float>(wire);
  const unsigned size = kTeamThreads / teams, rank = thread_index() % size;
  if (!is_norm(norm)) {
    if (rank == 0) atomic_or(status, kMalformed);
    return;
  }
  for (std::size_t i = kEight * rank; i < unit.height(); i += kEight * size) {
    const unsigned count = unit.height() - i < kEight ? static_cast<unsigned>(unit.height() - i) : kEight;
    const std::uint8_t* const codes = wire + kNormBytes + i / kEight * bits;
    const std::uint64_t word = load_bytes(codes, static_cast<unsigned>(packed_size(count, bits)));
    Four<float> v[2];
    GQ_UNROLL
    for (unsigned k = 0; k < kEight; ++k) {
      const int code = static_cast<int>(word >> (k * bits) & ((1u << bits) - 1));
      v[k / 4].number[k % 4] = level_of(*levels, code) * norm * (add ? 1.0f : scale);
    }
    put_four(y + unit.begin + i, v[0], count, add);
    if (count > 4) put_four(y + unit.begin + i + 4, v[1], count - 4, add);
  }
}
