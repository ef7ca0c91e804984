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
#include "gq/integers_quantize.hpp"
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
    for (std::size_t i = 0; i < n; ++i)
      code[i] = static_cast<std::uint8_t>(code_of(static_cast<std::int32_t>(m[i]), width));
    pack(code, n, width, out);
    return;
  }
  std::uint64_t word = 0;
  int held = 0;
  for (std::size_t i = 0; i < n; ++i) {
    word |= static_cast<std::uint64_t>(code_of(static_cast<std::int32_t>(m[i]), width)) << held;
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
    for (std::size_t i = 0; i < n; ++i) {
      const std::int32_t value = integer_of(code[i], width), magnitude = value < 0 ? -value : value;
      m[i] = static_cast<float>(value);
      largest = magnitude > largest ? magnitude : largest;
    }
  } else {
    std::uint64_t word = 0;
    int held = 0;
    for (std::size_t i = 0; i < n; ++i, held -= width, word >>= width) {
      for (; held < width; held += 8) word |= static_cast<std::uint64_t>(*in++) << held;
      const std::int32_t value = integer_of(word & ((1u << width) - 1), width);
      const std::int32_t magnitude = value < 0 ? -value : value;
      m[i] = static_cast<float>(value);
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  return static_cast<std::uint32_t>(largest);
}

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

static inline std::size_t count_bits(const std::uint64_t* mask, std::size_t n) {
  std::size_t count = 0;
  for (std::size_t word = 0; word < (n + 63) / 64; ++word) count += std::size_t(__builtin_popcountll(mask[word]));
  return count;
}

// The gap bytes of the entries of a tile.
struct Gaps {
  std::size_t size = 0;
  std::uint8_t byte[kTileValues + kTileValues / 255 + 1];

  // Calls each(at) for every set bit.
  template <class Each>
  Gaps(const std::uint64_t* mask, std::size_t n, Each each) {
    std::size_t next = 0;  // after the last entry
    for (std::size_t begin = 0; begin < n; begin += 64)
      for (std::uint64_t left = mask[begin / 64]; left; left &= left - 1) {
        const std::size_t at = begin + static_cast<std::size_t>(__builtin_ctzll(left));
        std::size_t gap = at - next;
        for (; gap >= 255; gap -= 255) byte[size++] = 255;
        byte[size++] = static_cast<std::uint8_t>(gap);
        each(at);
        next = at + 1;
      }
  }
};

// --- tiles ---

// Returns where the codes of a sparse tile begin.
static inline std::uint8_t* write_sparse_head(int width, std::size_t count, const Gaps& gaps, std::uint8_t* out) {
  *out = static_cast<std::uint8_t>(kSparse + width);
  store(out + 1, static_cast<std::uint16_t>(count));
  store(out + 3, static_cast<std::uint16_t>(gaps.size));
  std::memcpy(out + kSparseHead, gaps.byte, gaps.size);
  return out + kSparseHead + gaps.size;
}

static inline std::size_t write_zeros(std::uint8_t* out) {
  *out = kZeros;
  return 1;
}

// n integers with magnitudes of at most `largest`. Returns the bytes written: at most those of the dense form.
static inline std::size_t write_tile(const float* m, std::size_t n, std::uint32_t largest, std::uint8_t* out) {
  std::uint64_t entry[kTileValues / 64];
  for (std::size_t begin = 0; begin < n; begin += 64)
    entry[begin / 64] = entry_mask(m + begin, n - begin < 64 ? n - begin : 64);
  const std::size_t count = count_bits(entry, n);
  if (count == 0) return write_zeros(out);
  TileForm form = tile_form(n, largest, count, count);  // an entry has one gap byte at least
  if (form.sparse) {
    float value[kTileValues];
    std::size_t found = 0;
    const Gaps gaps(entry, n, [&](std::size_t at) { value[found++] = m[at]; });
    form = tile_form(n, largest, count, gaps.size);
    if (form.sparse) {
      write_codes(value, count, form.width, write_sparse_head(form.width, count, gaps, out));
      return form.nbytes;
    }
  }
  *out = static_cast<std::uint8_t>(form.width);
  write_codes(m, n, form.width, out + 1);
  return form.nbytes;
}

// Bit k of the lower 32 to bit 2 k. PDEP is slow on some CPUs without AVX-512 (bits.hpp).
static inline std::uint64_t spread(std::uint64_t bits) {
#if GQ_LEVEL == 2
  return _pdep_u64(bits, 0x5555555555555555);
#else
  bits &= 0xffffffff;
  bits = (bits | bits << 16) & 0x0000ffff0000ffff;
  bits = (bits | bits << 8) & 0x00ff00ff00ff00ff;
  bits = (bits | bits << 4) & 0x0f0f0f0f0f0f0f0f;
  bits = (bits | bits << 2) & 0x3333333333333333;
  return (bits | bits << 1) & 0x5555555555555555;
#endif
}

// The same bytes as write_tile's for the integers -1, 0 and 1 of own values.
static inline std::size_t write_signs(const Signs& signs, std::size_t n, std::uint8_t* out) {
  const std::size_t count = count_bits(signs.sent, n);
  if (count == 0) return write_zeros(out);
  TileForm form = tile_form(n, 1, count, count);
  if (form.sparse) {
    std::uint8_t code[kTileValues / 8] = {};
    std::size_t found = 0;
    const Gaps gaps(signs.sent, n, [&](std::size_t at) {
      const std::uint64_t positive = ~signs.negative[at / 64] >> at % 64 & 1;
      code[found / 8] |= static_cast<std::uint8_t>(positive << found % 8);
      ++found;
    });
    form = tile_form(n, 1, count, gaps.size);
    if (form.sparse) {
      std::memcpy(write_sparse_head(1, count, gaps, out), code, code_bytes(count, 1));
      return form.nbytes;
    }
  }
  *out++ = 2;
  for (std::size_t begin = 0; begin < n; begin += 64, out += 16) {  // code 0, 1 or 2: 1 is zero
    const std::size_t height = n - begin < 64 ? n - begin : 64;
    const std::uint64_t sent = signs.sent[begin / 64], high = sent & ~signs.negative[begin / 64];
    const std::uint64_t low = ~sent & ~std::uint64_t(0) >> (64 - height);
    const std::uint64_t word[2] = {spread(low) | spread(high) << 1, spread(low >> 32) | spread(high >> 32) << 1};
    std::memcpy(out, word, code_bytes(height, 2));
  }
  return form.nbytes;
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

#if GQ_LEVEL >= 1

// Reads as many of n codes of up to four bits as come before `end`, whole vectors at a time; returns how many.
static inline std::size_t read_by_table(const std::uint8_t* in, const std::uint8_t* end, float* y, std::size_t n,
                                        int width, const Limits& limits, float scale, bool add, bool* bad) {
  float entry[16];
  for (int k = 0; k < 16; ++k) {
    const std::int32_t value = (k & ((1 << width) - 1)) - middle(width);
    const bool good = limits.hold(static_cast<std::uint32_t>(value < 0 ? -value : value));
    entry[k] = good ? static_cast<float>(value) * limits.unit * scale : __builtin_nanf("");
  }
  const Table table(entry);
  const std::size_t step = kWidth / 8 * width;
  const Ints begins = code_begins(width);
  Ints wrong = {};
  std::size_t i = 0;
  for (; i + kWidth <= n && in + step + kExpandReads <= end; i += kWidth, in += step) {
    const Floats v = table[expand(in, width, begins)];
    wrong |= v != v;
    store(y + i, add ? load<Floats>(y + i) + v : v);
  }
  *bad = sign_bits(wrong) != 0;
  return i;
}

#endif

// y = m * unit * scale, or y += m * unit (scale is 1 then), of a tile whose bytes are all there. False if an integer
// is beyond the limits.
static inline bool read_tile(const std::uint8_t* wire, float* y, std::size_t n, const Limits& limits, float scale,
                             bool add) {
  const int width = wire[0];
  if (width == kZeros || width > kSparse) {
    if (!add) std::memset(y, 0, n * sizeof(float));
    return width == kZeros || read_sparse(wire, y, n, limits, scale);
  }
  std::size_t i = 0;
  bool bad = false;
#if GQ_LEVEL >= 1
  if (width <= 4) i = read_by_table(wire + 1, wire + 1 + code_bytes(n, width), y, n, width, limits, scale, add, &bad);
#endif
  alignas(64) float m[kTileValues];
  if (bad || !limits.hold(read_codes(wire + 1 + code_bytes(i, width), n - i, width, m))) return false;
  y += i;
  if (add)
    for (std::size_t k = 0; k < n - i; ++k) y[k] += m[k] * limits.unit;
  else
    for (std::size_t k = 0; k < n - i; ++k) y[k] = m[k] * limits.unit * scale;
  return true;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
