// Level codecs: per bucket a scale and, for every value, the code of one of a few levels: the nearest, or drawn so that
// the expected level is the value (to 2^-16 of a step). Uniform levels, small floating-point formats and tables are
// data (struct Levels) for one encoder and one decoder.
//
// A bucket on the wire: its scale, a float32 or the exponent of a power of two, then its codes as bits.hpp packs them.
// The encoder makes two passes over a bucket, which lies in the cache for the second: the norm, from which its scale
// follows, then the codes and the error fed back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/bits.hpp"
#include "gq/grid.hpp"
#include "gq/kernels.hpp"
#include "gq/levels_floats.hpp"
#include "gq/levels_round.hpp"
#include "gq/levels_vectors.hpp"
#include "gq/levels_wire.hpp"
#include "gq/random.hpp"
#include "gq/sum.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// The bits of max |v|: as an integer, so that a NaN is larger than any number.
static inline std::uint32_t largest_magnitude(const float* x, const float* e, std::size_t n) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float v = e ? x[i] + e[i] : x[i];
    std::int32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// The sum of v * v in float64 by the sum rule.
static inline double sum_of_squares(const float* x, const float* e, std::size_t n) {
  double sum = 0;
  float block[kSumBlock];
  for (std::size_t done = 0; done < n; done += kSumBlock) {
    const std::size_t part = n - done < kSumBlock ? n - done : kSumBlock;
    if (e)
      for (std::size_t i = 0; i < part; ++i) block[i] = x[done + i] + e[done + i];
    sum += block_sum(e ? block : x + done, part, Square());
  }
  return sum;
}

static inline float bucket_norm(const float* x, const float* e, std::size_t n, bool l2) {
  if (l2) return static_cast<float>(__builtin_sqrt(sum_of_squares(x, e, n)));
  const std::uint32_t bits = largest_magnitude(x, e, n);
  float norm;
  std::memcpy(&norm, &bits, sizeof norm);
  return norm;
}

#if GQ_LEVEL >= 1

// What `use` does with the vectors that fit these levels of small floats.
template <class Use>
static inline void with_vectors(const Levels& levels, float scale, const Use& use) {
  if (levels.floats.flip == 0)
    levels.nearest ? use(FloatingVectors<true, true>(levels, scale)) : use(FloatingVectors<true, false>(levels, scale));
  else
    levels.nearest ? use(FloatingVectors<false, true>(levels, scale))
                   : use(FloatingVectors<false, false>(levels, scale));
}

#endif

// The codes of at most kTile values v = x + e of one bucket, and the errors r = v - decoded; e and r may be null, and
// `random` where nothing is drawn.
static inline void round_values(const float* x, const float* e, float* r, const std::uint16_t* random, std::size_t n,
                                const Levels& levels, float scale, std::uint8_t* code) {
#if GQ_LEVEL >= 1
  if (levels.scale != Scale::kNorm || !is_tiny(scale)) {
    if (levels.uniform) return round_vectors(UniformVectors(levels, scale), x, e, r, random, n, code);
    if (levels.floating)
      return with_vectors(levels, scale, [&](const auto& coder) { round_vectors(coder, x, e, r, random, n, code); });
    if (levels.count <= Table::kMost)
      return round_vectors(TabledVectors<Table>(levels, scale), x, e, r, random, n, code);
    return round_vectors(TabledVectors<LongTable>(levels, scale), x, e, r, random, n, code);
  }
#endif
  const auto round = [&](const auto& coder) { round_plain(coder, levels, scale, x, e, r, random, n, code); };
  if (levels.floating) return round(Floating(levels, scale));
  if (!levels.uniform) return round(Tabled(levels, scale));
  if (levels.nearest) return round(NearestUniform(levels, scale));
  round(Uniform(levels, scale));
}

constexpr std::size_t kTile = 512;  // codes at once between rounding and packing: whole groups

// The codes of one bucket's values v = x + e, packed, and the errors r = v - decoded; e and r may be null.
static inline void encode_bucket(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                                 std::uint64_t index, const Levels& levels, float scale, RandomWindow& random) {
  alignas(64) std::uint8_t code[kTile];
  for (std::size_t height; n > 0; n -= height) {
    height = n < kTile ? n : kTile;
    round_values(x, e, r, levels.nearest ? nullptr : random.at(index, height), height, levels, scale, code);
    pack(code, height, levels.bits, wire);
    x += height;
    e += e ? height : 0;
    r += r ? height : 0;
    wire += packed_size(height, levels.bits);
    index += height;
  }
}

// The scale of a bucket, written to the wire.
static inline float put_scale(const Levels& levels, float norm, std::uint8_t* wire) {
  if (levels.scale != Scale::kNorm) {
    const int biased = biased_scale(levels, norm);
    *wire = static_cast<std::uint8_t>(biased);
    return power_of_two(biased);
  }
  float scale = norm / levels.reach;
  if (scale * levels.reach < norm) scale = float_of(bits_of(scale) + 1);  // the next float up, which reaches the norm
  store(wire, scale);
  return scale;
}

static int levels_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                         const Levels& levels, bool l2, const Grid& grid, const Stream& stream) {
  RandomWindow random(stream, grid.start + n);
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    const float* const unit_x = x + unit.begin;
    const float* const unit_e = e ? e + unit.begin : nullptr;
    const float norm = bucket_norm(unit_x, unit_e, unit.height(), l2);
    if (!is_norm(norm) || (r && norm > kLargestWithError)) return 1;
    const float scale = put_scale(levels, norm, wire);
    if (!is_scale(levels, scale)) return 1;
    wire += scale_size(levels);
    encode_bucket(unit_x, unit_e, r ? r + unit.begin : nullptr, wire, unit.height(), grid.start + unit.begin, levels,
                  scale, random);
    wire += packed_size(unit.height(), levels.bits);
  }
  return 0;
}

// y = v or y = y + v
static inline void put(float* y, float v, bool add) { *y = add ? *y + v : v; }

#if GQ_LEVEL >= 1

// Decodes so many of n codes of up to four bits as fill vectors; returns how many. Nothing is read from `end` on.
static inline std::size_t decode_by_table(const std::uint8_t* in, const std::uint8_t* end, float* y, std::size_t n,
                                          const Levels& levels, float unit_scale, float scale, bool add) {
  Table table(levels.value);
  if (levels.bits < 4) {  // bits of the next codes may follow a code
    float entry[16];
    for (int k = 0; k < 16; ++k) entry[k] = levels.value[k & ((1 << levels.bits) - 1)];
    table = Table(entry);
  }
  table = table.times(unit_scale).times(scale);
  const std::size_t step = kWidth / 8 * levels.bits;
  const Ints begins = code_begins(levels.bits);
  std::size_t i = 0;
  const auto decode_until = [&](const std::uint8_t* readable) {
    for (; i + kWidth <= n && in + step + kExpandReads <= readable; i += kWidth, in += step) {
      const Floats v = table[expand(in, levels.bits, begins)];
      store(y + i, add ? load<Floats>(y + i) + v : v);
    }
  };
  decode_until(end);
  if (i + kWidth <= n) {  // the codes are there, but a vector's load would go beyond them
    constexpr std::size_t kMost = kWidth / 8 * 4 + kExpandReads;
    std::uint8_t last[2 * kMost] = {};
    std::memcpy(last, in, std::size_t(end - in));
    in = last;
    decode_until(last + sizeof last);
  }
  return i;
}

#endif

// n codes of one byte each.
static inline void decode_codes(const std::uint8_t* code, float* y, std::size_t n, const Levels& levels,
                                float unit_scale, float scale, bool add) {
  std::size_t i = 0;
#if GQ_LEVEL >= 1
  if (levels.uniform) {  // the same numbers as in the table, but without looking them up
    for (; i < n; ++i) put(y + i, uniform_level(levels, code[i]) * unit_scale * scale, add);
  } else if (levels.floating) {
    with_vectors(levels, unit_scale, [&](const auto& coder) {
      for (; i + kWidth <= n; i += kWidth) {
        const Floats v = coder.decoded(load_bytes(code + i)) * scale;
        store(y + i, add ? load<Floats>(y + i) + v : v);
      }
    });
  }
#endif
  for (; i < n; ++i) put(y + i, levels.value[code[i]] * unit_scale * scale, add);
}

static int levels_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n, const Levels& levels,
                         const Grid& grid, float scale, bool add) {
  alignas(64) std::uint8_t code[kTile];
  const std::uint8_t* const end = wire + nbytes;
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    if (std::size_t(end - wire) < scale_size(levels) + packed_size(unit.height(), levels.bits)) return 1;
    const float unit_scale = scale_from(levels, wire);
    if (unit_scale < 0) return 1;
    wire += scale_size(levels);
    std::size_t begin = unit.begin;
#if GQ_LEVEL >= 1
    if (levels.bits <= 4) {
      begin += decode_by_table(wire, end, y + begin, unit.height(), levels, unit_scale, scale, add);
      wire += packed_size(begin - unit.begin, levels.bits);
    }
#endif
    for (; begin < unit.end; begin += kTile) {
      const std::size_t height = unit.end - begin < kTile ? unit.end - begin : kTile;
      if (levels.bits < 8) unpack(wire, height, levels.bits, code);
      decode_codes(levels.bits < 8 ? code : wire, y + begin, height, levels, unit_scale, scale, add);
      wire += packed_size(height, levels.bits);
    }
  }
  return wire == end ? 0 : 1;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
