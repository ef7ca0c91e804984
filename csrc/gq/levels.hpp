// Level codecs: per bucket a norm and, for every value, the code of one of a few levels, drawn so that the expected
// level is the value (to 2^-16 of a step). Uniform levels and tables are data (struct Levels) for one encoder and one
// decoder.
//
// A bucket on the wire: float32 norm, then its codes as bits.hpp packs them. The encoder makes two passes over a
// bucket, which lies in the cache for the second: the norm, then the codes and the error fed back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/bits.hpp"
#include "gq/grid.hpp"
#include "gq/kernels.hpp"
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

// The codes of at most kTile values v = x + e of one bucket, and the errors r = v - decoded; e and r may be null.
static inline void round_values(const float* x, const float* e, float* r, const std::uint16_t* random, std::size_t n,
                                const Levels& levels, float norm, std::uint8_t* code) {
#if GQ_LEVEL >= 1
  if (!is_tiny(norm)) {
    if (levels.uniform) return round_vectors(UniformVectors(levels, norm), x, e, r, random, n, code);
    if (levels.count <= 16) return round_vectors(TabledVectors(levels, norm), x, e, r, random, n, code);
  }
#endif
  if (levels.uniform) return round_plain(Uniform(levels, norm), levels, norm, x, e, r, random, n, code);
  round_plain(Tabled(levels, norm), levels, norm, x, e, r, random, n, code);
}

constexpr std::size_t kTile = 512;  // codes at once between rounding and packing: whole groups

// The codes of one bucket's values v = x + e, packed, and the errors r = v - decoded; e and r may be null.
static inline void encode_bucket(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                                 std::uint64_t index, const Levels& levels, float norm, RandomWindow& random) {
  alignas(64) std::uint8_t code[kTile];
  for (std::size_t height; n > 0; n -= height) {
    height = n < kTile ? n : kTile;
    round_values(x, e, r, random.at(index, height), height, levels, norm, code);
    pack(code, height, levels.bits, wire);
    x += height;
    e += e ? height : 0;
    r += r ? height : 0;
    wire += packed_size(height, levels.bits);
    index += height;
  }
}

static int levels_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                         const Levels& levels, bool l2, const Grid& grid, const Stream& stream) {
  RandomWindow random(stream, grid.start + n);
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    const float* const unit_x = x + unit.begin;
    const float* const unit_e = e ? e + unit.begin : nullptr;
    const float norm = bucket_norm(unit_x, unit_e, unit.height(), l2);
    if (!is_norm(norm) || (r && norm > kLargestWithError)) return 1;
    std::memcpy(wire, &norm, kNormBytes);
    encode_bucket(unit_x, unit_e, r ? r + unit.begin : nullptr, wire + kNormBytes, unit.height(),
                  grid.start + unit.begin, levels, norm, random);
    wire += bucket_size(unit.height(), levels.bits);
  }
  return 0;
}

// y = v or y = y + v
static inline void put(float* y, float v, bool add) { *y = add ? *y + v : v; }

#if GQ_LEVEL >= 1

// Decodes as many of n codes of up to four bits as can be read before `end`, whole vectors at a time; returns how many.
static inline std::size_t decode_by_table(const std::uint8_t* in, const std::uint8_t* end, float* y, std::size_t n,
                                          const Levels& levels, float norm, float scale, bool add) {
  float entry[16];
  for (int k = 0; k < 16; ++k) entry[k] = levels.value[k & ((1 << levels.bits) - 1)] * norm * scale;
  const Table table(entry);
  const std::size_t step = kWidth / 8 * levels.bits;
  std::size_t i = 0;
  for (; i + kWidth <= n && in + step + kExpandReads <= end; i += kWidth, in += step) {
    const Floats v = table[expand(in, levels.bits)];
    store(y + i, add ? load<Floats>(y + i) + v : v);
  }
  return i;
}

#endif

// n codes of one byte each.
static inline void decode_codes(const std::uint8_t* code, float* y, std::size_t n, const Levels& levels, float norm,
                                float scale, bool add) {
#if GQ_LEVEL >= 1
  if (levels.uniform) {  // the same numbers as in the table, but without looking them up
    for (std::size_t i = 0; i < n; ++i) put(y + i, uniform_level(levels, code[i]) * norm * scale, add);
    return;
  }
#endif
  for (std::size_t i = 0; i < n; ++i) put(y + i, levels.value[code[i]] * norm * scale, add);
}

static int levels_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n, const Levels& levels,
                         const Grid& grid, float scale, bool add) {
  alignas(64) std::uint8_t code[kTile];
  const std::uint8_t* const end = wire + nbytes;
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    if (std::size_t(end - wire) < bucket_size(unit.height(), levels.bits)) return 1;
    float norm;
    std::memcpy(&norm, wire, kNormBytes);
    if (!is_norm(norm)) return 1;
    wire += kNormBytes;
    std::size_t begin = unit.begin;
#if GQ_LEVEL >= 1
    if (levels.bits <= 4) {
      begin += decode_by_table(wire, end, y + begin, unit.height(), levels, norm, scale, add);
      wire += packed_size(begin - unit.begin, levels.bits);
    }
#endif
    for (; begin < unit.end; begin += kTile) {
      const std::size_t height = unit.end - begin < kTile ? unit.end - begin : kTile;
      unpack(wire, height, levels.bits, code);
      decode_codes(code, y + begin, height, levels, norm, scale, add);
      wire += packed_size(height, levels.bits);
    }
  }
  return wire == end ? 0 : 1;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
