// One-bit quantization: the format of onebit_wire.hpp.
//
// The encoder visits a column once to form v, its bits and both sums, and once more, while v is in cache, to turn the
// v kept in r into the error v - decoded.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/formed.hpp"
#include "gq/grid.hpp"
#include "gq/onebit_wire.hpp"
#include "gq/sum.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

static std::size_t onebit_nbytes(const Grid& grid, std::size_t n) {
  return onebit_offset(grid, n, unit_count(grid, n));
}

// Level by level: onebit_block(x, e, r, bits, n, sums) handles n <= 4096 values of a column, a block of the sum rule.
// It writes v = x + e to r (if r is given) and the sign bits to `bits`, and adds to `sums`.
struct SignLanes {
  Lanes positive, negative;
};

#if GQ_LEVEL == 2

// Sixteen values: their mask of v >= 0; values outside `valid` are in neither sum.
static inline __mmask16 add_sixteen(SignLanes& lanes, int half, __m512 v, __mmask16 valid) {
  const __mmask16 positive = _mm512_mask_cmp_ps_mask(valid, v, _mm512_setzero_ps(), _CMP_GE_OQ);
  const __mmask16 negative = _kandn_mask16(positive, valid);
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
  __m512d* up = lanes.positive.part + 2 * half;
  __m512d* down = lanes.negative.part + 2 * half;
  up[0] = _mm512_mask_add_pd(up[0], static_cast<__mmask8>(positive), up[0], low);
  up[1] = _mm512_mask_add_pd(up[1], static_cast<__mmask8>(positive >> 8), up[1], high);
  down[0] = _mm512_mask_add_pd(down[0], static_cast<__mmask8>(negative), down[0], low);
  down[1] = _mm512_mask_add_pd(down[1], static_cast<__mmask8>(negative >> 8), down[1], high);
  return positive;
}

// 32 values from i on, or the fewer in `valid`; returns their sign bits.
template <bool kError, bool kKeep>
static inline std::uint32_t add_thirty_two(SignLanes& lanes, const float* x, const float* e, float* r,
                                           std::uint32_t valid) {
  std::uint32_t bits = 0;
  for (int half = 0; half < 2 && valid >> 16 * half; ++half) {
    const __mmask16 here = static_cast<__mmask16>(valid >> 16 * half);
    __m512 v = _mm512_maskz_loadu_ps(here, x + 16 * half);
    if (kError) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(here, e + 16 * half));
    if (kKeep) _mm512_mask_storeu_ps(r + 16 * half, here, v);
    bits |= static_cast<std::uint32_t>(add_sixteen(lanes, half, v, here)) << 16 * half;
  }
  return bits;
}

template <bool kError, bool kKeep>
static inline void onebit_block_as(const float* x, const float* e, float* r, std::uint8_t* bits, std::size_t n,
                                   SignSums& sums) {
  SignLanes lanes;
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const std::uint32_t word = add_thirty_two<kError, kKeep>(lanes, x + i, e + i, r + i, ~0u);
    sums.positive_count += _mm_popcnt_u32(word);
    store(bits + i / 8, word);
  }
  if (i < n) {
    const std::uint32_t word = add_thirty_two<kError, kKeep>(lanes, x + i, e + i, r + i, _bzhi_u32(~0u, n - i));
    sums.positive_count += _mm_popcnt_u32(word);
    std::memcpy(bits + i / 8, &word, (n - i + 7) / 8);
  }
  sums.positive += fold(lanes.positive);
  sums.negative += fold(lanes.negative);
}

static void onebit_block(const float* x, const float* e, float* r, std::uint8_t* bits, std::size_t n, SignSums& sums) {
  // The unused pointer follows x: e + i and r + i stay lawful.
  if (e && r) return onebit_block_as<true, true>(x, e, r, bits, n, sums);
  if (e) return onebit_block_as<true, false>(x, e, const_cast<float*>(x), bits, n, sums);
  if (r) return onebit_block_as<false, true>(x, x, r, bits, n, sums);
  return onebit_block_as<false, false>(x, x, const_cast<float*>(x), bits, n, sums);
}

static inline void subtract_from_sixteen(float* r, __mmask16 here, __m512 up, __m512 down) {
  const __m512 v = _mm512_maskz_loadu_ps(here, r);
  const __mmask16 positive = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GE_OQ);
  _mm512_mask_storeu_ps(r, here, _mm512_sub_ps(v, _mm512_mask_blend_ps(positive, down, up)));
}

static void subtract_means(float* r, std::size_t n, SignMeans means) {
  const __m512 up = _mm512_set1_ps(means.positive), down = _mm512_set1_ps(means.negative);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) subtract_from_sixteen(r + i, 0xffff, up, down);
  if (i < n) subtract_from_sixteen(r + i, static_cast<__mmask16>(_bzhi_u32(0xffff, n - i)), up, down);
}

#else

struct Positive {
  double operator()(double v) const { return v >= 0.0 ? v : 0.0; }
#if GQ_LEVEL == 1
  __m256d operator()(__m256d v) const { return _mm256_max_pd(_mm256_setzero_pd(), v); }
#endif
};

struct Negative {
  double operator()(double v) const { return v >= 0.0 ? 0.0 : v; }
#if GQ_LEVEL == 1
  __m256d operator()(__m256d v) const { return _mm256_min_pd(_mm256_setzero_pd(), v); }
#endif
};

// The sign bits of n <= 8 values.
static inline std::uint8_t sign_byte(const float* v, std::size_t n) {
  unsigned byte = 0;
  for (std::size_t j = 0; j < n; ++j) byte |= static_cast<unsigned>(v[j] >= 0.0f) << j;
  return static_cast<std::uint8_t>(byte);
}

// Bits and sums of n values.
static inline void add_signs(const float* v, std::uint8_t* bits, std::size_t n, SignLanes& lanes, SignSums& sums) {
  for (std::size_t i = 0; i < n; i += 8) {
    bits[i / 8] = sign_byte(v + i, n - i < 8 ? n - i : 8);
    sums.positive_count += static_cast<std::size_t>(__builtin_popcount(bits[i / 8]));
  }
  std::size_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    add_row(lanes.positive, v + i, Positive());
    add_row(lanes.negative, v + i, Negative());
  }
  if (i == n) return;
  add_part_of_row(lanes.positive, v + i, n - i, Positive());
  add_part_of_row(lanes.negative, v + i, n - i, Negative());
}

#if GQ_LEVEL == 1

// The lanes from 16 * kHalf on, 16 of them, of so many rows of 32 values: with those of both halves their sums would
// not fit into the registers.
template <int kHalf, bool kError, bool kKeep>
static inline void add_half_rows(const float* x, const float* e, float* r, std::uint8_t* bits, std::size_t rows,
                                 SignLanes& lanes, SignSums& sums) {
  __m256d up[4], down[4];
  for (int q = 0; q < 4; ++q) up[q] = lanes.positive.part[4 * kHalf + q], down[q] = lanes.negative.part[4 * kHalf + q];
  std::size_t positives = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t at = kSumLanes * row + 16 * kHalf;
    unsigned word = 0;
    for (int part = 0; part < 2; ++part) {
      __m256 v = _mm256_loadu_ps(x + at + 8 * part);
      if (kError) v = _mm256_add_ps(v, _mm256_loadu_ps(e + at + 8 * part));
      if (kKeep) _mm256_storeu_ps(r + at + 8 * part, v);
      word |= unsigned(_mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_GE_OQ))) << 8 * part;
      const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
      const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
      up[2 * part] += Positive()(low), up[2 * part + 1] += Positive()(high);
      down[2 * part] += Negative()(low), down[2 * part + 1] += Negative()(high);
    }
    store(bits + at / 8, static_cast<std::uint16_t>(word));
    positives += _mm_popcnt_u32(word);
  }
  for (int q = 0; q < 4; ++q) lanes.positive.part[4 * kHalf + q] = up[q], lanes.negative.part[4 * kHalf + q] = down[q];
  sums.positive_count += positives;
}

template <bool kError, bool kKeep>
static inline void add_rows_as(const float* x, const float* e, float* r, std::uint8_t* bits, std::size_t rows,
                               SignLanes& lanes, SignSums& sums) {
  constexpr std::size_t kRows = 16;  // at once: two halves of them lie in the first cache
  for (std::size_t row = 0; row < rows; row += kRows) {
    const std::size_t count = rows - row < kRows ? rows - row : kRows, at = kSumLanes * row;
    add_half_rows<0, kError, kKeep>(x + at, e + at, r + at, bits + at / 8, count, lanes, sums);
    add_half_rows<1, kError, kKeep>(x + at, e + at, r + at, bits + at / 8, count, lanes, sums);
  }
}

// Whole rows; returns the number of their values.
static inline std::size_t add_rows(const float* x, const float* e, float* r, std::uint8_t* bits, std::size_t n,
                                   SignLanes& lanes, SignSums& sums) {
  const std::size_t rows = n / kSumLanes;
  float* const unused = const_cast<float*>(x);  // in place of what is not given, so that e + i and r + i stay lawful
  if (e && r)
    add_rows_as<true, true>(x, e, r, bits, rows, lanes, sums);
  else if (e)
    add_rows_as<true, false>(x, e, unused, bits, rows, lanes, sums);
  else if (r)
    add_rows_as<false, true>(x, x, r, bits, rows, lanes, sums);
  else
    add_rows_as<false, false>(x, x, unused, bits, rows, lanes, sums);
  return rows * kSumLanes;
}

#else

static inline std::size_t add_rows(const float*, const float*, float*, std::uint8_t*, std::size_t, SignLanes&,
                                   SignSums&) {
  return 0;
}

#endif

static void onebit_block(const float* x, const float* e, float* r, std::uint8_t* bits, std::size_t n, SignSums& sums) {
  SignLanes lanes;
  float spare[kSumBlock];
  const std::size_t done = add_rows(x, e, r, bits, n, lanes, sums);
  if (done < n) {
    const float* const v = formed(x + done, e ? e + done : nullptr, r ? r + done : nullptr, spare, n - done);
    add_signs(v, bits + done / 8, n - done, lanes, sums);
  }
  sums.positive += fold(lanes.positive);
  sums.negative += fold(lanes.negative);
}

static void subtract_means(float* r, std::size_t n, SignMeans means) {
  for (std::size_t i = 0; i < n; ++i) r[i] -= r[i] >= 0.0f ? means.positive : means.negative;
}

#endif

// Bytes written, or -1 if a value or a mean is not finite.
static std::int64_t onebit_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                                  const Grid& grid) {
  const std::uint8_t* const first = wire;
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    SignSums sums;
    for (std::size_t begin = unit.begin; begin < unit.end; begin += kSumBlock) {
      const std::size_t count = unit.end - begin < kSumBlock ? unit.end - begin : kSumBlock;
      std::uint8_t* bits = wire + kOnebitHeader + (begin - unit.begin) / 8;
      onebit_block(x + begin, e ? e + begin : nullptr, r ? r + begin : nullptr, bits, count, sums);
    }
    const SignMeans means = means_of(sums, unit.height());
    if (!is_finite(means.positive) || !is_finite(means.negative)) return -1;
    store(wire, means.positive);
    store(wire + sizeof(float), means.negative);
    if (r) subtract_means(r + unit.begin, unit.height(), means);
    wire += onebit_column_nbytes(unit.height());
  }
  return wire - first;
}

// y = or += the means that the bits choose.
template <bool kAdd>
static inline void spread_means(const std::uint8_t* bits, float* y, std::size_t n, SignMeans means) {
  std::size_t i = 0;
#if GQ_LEVEL == 2
  const __m512 up = _mm512_set1_ps(means.positive), down = _mm512_set1_ps(means.negative);
  for (; i + 16 <= n; i += 16) {
    const __m512 d = _mm512_mask_blend_ps(load<__mmask16>(bits + i / 8), down, up);
    _mm512_storeu_ps(y + i, kAdd ? _mm512_add_ps(_mm512_loadu_ps(y + i), d) : d);
  }
#elif GQ_LEVEL == 1
  const __m256 up = _mm256_set1_ps(means.positive), down = _mm256_set1_ps(means.negative);
  const __m256i to_sign = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);  // brings bit j of lane j to the top
  for (; i + 8 <= n; i += 8) {
    const __m256i positive = _mm256_sllv_epi32(_mm256_set1_epi32(bits[i / 8]), to_sign);
    const __m256 d = _mm256_blendv_ps(down, up, _mm256_castsi256_ps(positive));
    _mm256_storeu_ps(y + i, kAdd ? _mm256_add_ps(_mm256_loadu_ps(y + i), d) : d);
  }
#endif
  for (; i < n; ++i) {
    const float d = bits[i / 8] >> i % 8 & 1 ? means.positive : means.negative;
    y[i] = kAdd ? y[i] + d : d;
  }
}

// Bytes read, or -1 if a mean is not finite. The wire must hold onebit_nbytes(grid, n) bytes: who calls has checked it.
template <bool kAdd>
static std::int64_t onebit_decode_as(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid, float scale) {
  const std::uint8_t* const first = wire;
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    SignMeans means = {load<float>(wire), load<float>(wire + sizeof(float))};
    if (!is_finite(means.positive) || !is_finite(means.negative)) return -1;
    means = {means.positive * scale, means.negative * scale};
    spread_means<kAdd>(wire + kOnebitHeader, y + unit.begin, unit.height(), means);
    wire += onebit_column_nbytes(unit.height());
  }
  return wire - first;
}

static std::int64_t onebit_decode(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid, float scale) {
  return onebit_decode_as<false>(wire, y, n, grid, scale);
}

static std::int64_t onebit_decode_add(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid) {
  return onebit_decode_as<true>(wire, y, n, grid, 1.0f);
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
