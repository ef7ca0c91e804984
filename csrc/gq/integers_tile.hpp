// One tile of integers, kept in float32, to bytes and back. The first byte says how it is written:
//   1        all are zero, nothing follows
//   w        dense: a code of w bits for each value, 2 <= w <= 25
//   128 + w  sparse: uint16 number of entries, uint16 number of gap bytes, the gap bytes, then a code of w bits for
//            each entry. A gap byte below 255 is the number of zeros before the next entry, 255 are 255 more zeros.
// Code c of w bits stands for c - (2^(w-1) - 1); of one bit, which only entries have, for 2 c - 1.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/bits.hpp"
#include "gq/integers_wire.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

static inline float largest_of(const float* m, std::size_t n) {
  std::uint32_t largest = 0;  // of the bits: a NaN is larger than any number
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, m + i, sizeof bits);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float value;
  std::memcpy(&value, &largest, sizeof value);
  return value;
}

// --- codes ---

static inline void write_codes(const float* m, std::size_t n, int width, std::uint8_t* out) {
  if (width <= 8) {
    alignas(64) std::uint8_t code[kTileValues];
    const std::int32_t zero = middle(width);
    if (width == 1)
      for (std::size_t i = 0; i < n; ++i) code[i] = m[i] > 0;
    else
      for (std::size_t i = 0; i < n; ++i) code[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(m[i]) + zero);
    pack(code, n, width, out);
    return;
  }
  std::uint64_t word = 0;
  int held = 0;
  for (std::size_t i = 0; i < n; ++i) {
    word |= static_cast<std::uint64_t>(static_cast<std::int32_t>(m[i]) + middle(width)) << held;
    for (held += width; held >= 8; held -= 8, word >>= 8) *out++ = static_cast<std::uint8_t>(word);
  }
  if (held > 0) *out = static_cast<std::uint8_t>(word);
}

// Returns the largest magnitude.
static inline std::uint32_t read_codes(const std::uint8_t* in, std::size_t n, int width, float* m) {
  std::int32_t largest = 0;
  if (width <= 8) {
    alignas(64) std::uint8_t code[kTileValues];
    unpack(in, n, width, code);
    const std::int32_t zero = width == 1 ? 1 : middle(width), step = width == 1 ? 2 : 1;
    for (std::size_t i = 0; i < n; ++i) {
      const std::int32_t value = code[i] * step - zero, magnitude = value < 0 ? -value : value;
      m[i] = static_cast<float>(value);
      largest = magnitude > largest ? magnitude : largest;
    }
  } else {
    std::uint64_t word = 0;
    int held = 0;
    for (std::size_t i = 0; i < n; ++i, held -= width, word >>= width) {
      for (; held < width; held += 8) word |= static_cast<std::uint64_t>(*in++) << held;
      const std::int32_t value = static_cast<std::int32_t>(word & ((1u << width) - 1)) - middle(width);
      const std::int32_t magnitude = value < 0 ? -value : value;
      m[i] = static_cast<float>(value);
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  return static_cast<std::uint32_t>(largest);
}

// What integers on the wire may be: at most `terms`, and finite times the unit.
struct Limits {
  std::uint32_t terms;
  float unit;

  bool hold(std::uint32_t largest) const {
    return largest <= terms && static_cast<float>(largest) * unit < __builtin_inff();
  }
};

// --- where the entries are ---

// Bit k is set where m[k] is not zero, for at most 64 values.
static inline std::uint64_t entry_mask(const float* m, std::size_t n) {
  std::uint64_t mask = 0;
  std::size_t i = 0;
#if GQ_LEVEL == 2
  for (; i + kWidth <= n; i += kWidth)
    mask |= std::uint64_t(_mm512_cmp_ps_mask(_mm512_loadu_ps(m + i), _mm512_setzero_ps(), _CMP_NEQ_UQ)) << i;
#elif GQ_LEVEL == 1
  for (; i + kWidth <= n; i += kWidth) {
    const __m256 entry = _mm256_cmp_ps(_mm256_loadu_ps(m + i), _mm256_setzero_ps(), _CMP_NEQ_UQ);
    mask |= std::uint64_t(std::uint32_t(_mm256_movemask_ps(entry))) << i;
  }
#endif
  for (; i < n; ++i) mask |= std::uint64_t(m[i] != 0) << i;
  return mask;
}

// The entries of a tile: first where they are, then, if they are few, their gaps and values.
struct Entries {
  static constexpr std::size_t kWords = kTileValues / 64;
  std::size_t count = 0, gap_bytes = 0;
  std::uint64_t mask[kWords];
  std::uint8_t gaps[kTileValues + kTileValues / 255 + 1];
  float value[kTileValues];

  Entries(const float* m, std::size_t n) {
    for (std::size_t begin = 0; begin < n; begin += 64) {
      mask[begin / 64] = entry_mask(m + begin, n - begin < 64 ? n - begin : 64);
      count += static_cast<std::size_t>(__builtin_popcountll(mask[begin / 64]));
    }
  }

  void collect(const float* m, std::size_t n) {
    std::size_t next = 0, entry = 0;  // next: after the last entry
    for (std::size_t begin = 0; begin < n; begin += 64)
      for (std::uint64_t left = mask[begin / 64]; left; left &= left - 1) {
        const std::size_t at = begin + static_cast<std::size_t>(__builtin_ctzll(left));
        std::size_t gap = at - next;
        for (; gap >= 255; gap -= 255) gaps[gap_bytes++] = 255;
        gaps[gap_bytes++] = static_cast<std::uint8_t>(gap);
        value[entry++] = m[at];
        next = at + 1;
      }
  }
};

// --- tiles ---

// Returns the bytes written: at most those of the dense form. `largest` bounds the magnitudes.
static inline std::size_t write_tile(const float* m, std::size_t n, std::uint32_t largest, std::uint8_t* out) {
  const int width = width_of(largest), narrow = largest > 1 ? width : 1;
  const std::size_t dense = 1 + code_bytes(n, width);
  Entries entries(m, n);
  if (entries.count == 0) {
    *out = kZeros;
    return 1;
  }
  const std::size_t codes = code_bytes(entries.count, narrow);
  if (kSparseHead + entries.count + codes < dense) {
    entries.collect(m, n);
    const std::size_t sparse = kSparseHead + entries.gap_bytes + codes;
    if (sparse < dense) {
      *out = static_cast<std::uint8_t>(kSparse + narrow);
      store(out + 1, static_cast<std::uint16_t>(entries.count));
      store(out + 3, static_cast<std::uint16_t>(entries.gap_bytes));
      std::memcpy(out + kSparseHead, entries.gaps, entries.gap_bytes);
      write_codes(entries.value, entries.count, narrow, out + kSparseHead + entries.gap_bytes);
      return sparse;
    }
  }
  *out = static_cast<std::uint8_t>(width);
  write_codes(m, n, width, out + 1);
  return dense;
}

// False if the entries are not where the gaps say, or beyond the tile, or too large.
static inline bool read_sparse(const std::uint8_t* wire, float* y, std::size_t n, const Limits& limits, float scale) {
  const int width = wire[0] - kSparse;
  const std::size_t count = load<std::uint16_t>(wire + 1), gap_bytes = load<std::uint16_t>(wire + 3);
  const std::uint8_t* const gaps = wire + kSparseHead;
  float value[kTileValues];
  if (count > n || !limits.hold(read_codes(gaps + gap_bytes, count, width, value))) return false;
  std::size_t at = 0, entry = 0;
  for (std::size_t k = 0; k < gap_bytes; ++k) {
    at += gaps[k];
    if (gaps[k] == 255) continue;
    if (at >= n || entry == count) return false;
    y[at++] += value[entry++] * limits.unit * scale;
  }
  return entry == count;
}

// y = m * unit * scale, or y += m * unit (scale is 1 then), of a tile whose bytes are all there. False if an integer
// is beyond the limits.
static inline bool read_tile(const std::uint8_t* wire, float* y, std::size_t n, const Limits& limits, float scale,
                             bool add) {
  if (wire[0] == kZeros || wire[0] > kSparse) {
    if (!add) std::memset(y, 0, n * sizeof(float));
    return wire[0] == kZeros || read_sparse(wire, y, n, limits, scale);
  }
  alignas(64) float m[kTileValues];
  if (!limits.hold(read_codes(wire + 1, n, wire[0], m))) return false;
  if (add)
    for (std::size_t i = 0; i < n; ++i) y[i] += m[i] * limits.unit;
  else
    for (std::size_t i = 0; i < n; ++i) y[i] = m[i] * limits.unit * scale;
  return true;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
