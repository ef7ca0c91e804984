// The few vector operations that the kernels share, for the instruction set at hand: 8 lanes of 32 bits with AVX2, 16
// with AVX-512. The types are GCC's, so + - * < ?: & ^ >> work on them as they do on numbers.
#pragma once
#include "gq/standard.hpp"

#if GQ_LEVEL >= 1
#include <immintrin.h>

namespace gq {
namespace GQ_NAMESPACE {

// For what has vectors as members or arguments and runs in an inner loop: out of line, they pass through memory.
#define GQ_INLINE __attribute__((always_inline)) inline

constexpr std::size_t kWidth = GQ_LEVEL == 2 ? 16 : 8;  // numbers of 32 bits in a vector
constexpr std::size_t kGroup = 4 * kWidth;              // as many bytes as fill one vector

typedef float Floats __attribute__((vector_size(4 * kWidth)));
typedef std::int32_t Ints __attribute__((vector_size(4 * kWidth)));
typedef std::uint64_t Quads __attribute__((vector_size(4 * kWidth)));
typedef std::uint8_t Bytes __attribute__((vector_size(4 * kWidth)));

template <class Vector>
static inline Vector load(const void* source) {
  Vector v;
  std::memcpy(&v, source, sizeof v);
  return v;
}

template <class Vector>
static inline void store(void* target, Vector v) {
  std::memcpy(target, &v, sizeof v);
}

#if GQ_LEVEL == 2
using Register = __m512i;

static inline Floats minimum(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
static inline Ints round_up(Floats a) {
  return (Ints)_mm512_cvt_roundps_epi32((__m512)a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}
static inline Ints round_even(Floats a) {
  return (Ints)_mm512_cvt_roundps_epi32((__m512)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline Ints load_bytes(const std::uint8_t* source) {
  return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)source));
}
static inline bool any(Ints mask) { return _mm512_movepi32_mask((Register)mask) != 0; }
static inline Ints load_words(const std::uint16_t* source) {
  return (Ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)source));
}

// a * b of the low halves of each 64-bit lane.
static inline Quads multiply_low_halves(Quads a, Quads b) { return (Quads)_mm512_mul_epu32((Register)a, (Register)b); }
static inline Quads exclusive_or(Quads a, Quads b, Quads c) {
  return (Quads)_mm512_ternarylogic_epi64((Register)a, (Register)b, (Register)c, 0x96);
}
// The low halves of a below the low halves of b.
static inline Quads join_low_halves(Quads a, Quads b) {
  return (Quads)_mm512_mask_moveldup_ps((__m512)a, 0xAAAA, (__m512)b);
}
static inline Quads even_lanes(Quads a, Quads b) { return (Quads)_mm512_unpacklo_epi64((Register)a, (Register)b); }
static inline Quads odd_lanes(Quads a, Quads b) { return (Quads)_mm512_unpackhi_epi64((Register)a, (Register)b); }

// The bytes a[0] a[1] ... b[0] ... d[15] of numbers from 0 to 127 (or 255).
static inline Bytes narrow_to_bytes(Ints a, Ints b, Ints c, Ints d) {
  const Register ab = _mm512_packs_epi32((Register)a, (Register)b);
  const Register cd = _mm512_packs_epi32((Register)c, (Register)d);
  const Register order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return (Bytes)_mm512_permutexvar_epi32(order, _mm512_packus_epi16(ab, cd));
}

#else
using Register = __m256i;

static inline Floats minimum(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
static inline Ints round_up(Floats a) { return (Ints)_mm256_cvttps_epi32(_mm256_ceil_ps((__m256)a)); }
static inline Ints round_even(Floats a) { return (Ints)_mm256_cvtps_epi32((__m256)a); }  // door.hpp sets the mode
static inline Ints load_bytes(const std::uint8_t* source) {
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)source));
}
static inline bool any(Ints mask) { return _mm256_movemask_ps((__m256)mask) != 0; }
static inline Ints load_words(const std::uint16_t* source) {
  return (Ints)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)source));
}

static inline Quads multiply_low_halves(Quads a, Quads b) { return (Quads)_mm256_mul_epu32((Register)a, (Register)b); }
static inline Quads exclusive_or(Quads a, Quads b, Quads c) { return a ^ b ^ c; }
static inline Quads join_low_halves(Quads a, Quads b) {
  return (Quads)_mm256_blend_epi32((Register)a, (Register)(b << 32), 0xAA);
}
static inline Quads even_lanes(Quads a, Quads b) { return (Quads)_mm256_unpacklo_epi64((Register)a, (Register)b); }
static inline Quads odd_lanes(Quads a, Quads b) { return (Quads)_mm256_unpackhi_epi64((Register)a, (Register)b); }

static inline Bytes narrow_to_bytes(Ints a, Ints b, Ints c, Ints d) {
  const Register ab = _mm256_packs_epi32((Register)a, (Register)b);
  const Register cd = _mm256_packs_epi32((Register)c, (Register)d);
  const Register order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return (Bytes)_mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order);
}
#endif

static inline Ints to_ints(Floats a) { return __builtin_convertvector(a, Ints); }
static inline Floats to_floats(Ints a) { return __builtin_convertvector(a, Floats); }

// A table of 16 floats in registers, times a factor.
struct Table {
  static constexpr int kMost = 16;
#if GQ_LEVEL == 2
  __m512 all;
  explicit Table(const float* entry, float factor = 1) : all((__m512)((Floats)_mm512_loadu_ps(entry) * factor)) {}
  // All entries times a factor.
  Table times(float factor) const {
    Table made = *this;
    made.all = (__m512)((Floats)all * factor);
    return made;
  }
  // The entries with the numbers given by the low four bits of each lane.
  Floats operator[](Ints index) const { return (Floats)_mm512_permutexvar_ps((Register)index, all); }
#else
  __m256 low, high;
  explicit Table(const float* entry, float factor = 1)
      : low((__m256)((Floats)_mm256_loadu_ps(entry) * factor)),
        high((__m256)((Floats)_mm256_loadu_ps(entry + 8) * factor)) {}
  // All entries times a factor.
  Table times(float factor) const {
    Table made = *this;
    made.low = (__m256)((Floats)low * factor);
    made.high = (__m256)((Floats)high * factor);
    return made;
  }
  Floats operator[](Ints index) const {
    const __m256 from_low = _mm256_permutevar8x32_ps(low, (Register)index);
    const __m256 from_high = _mm256_permutevar8x32_ps(high, (Register)index);
    return (Floats)_mm256_blendv_ps(from_low, from_high, (__m256)(index << 28));  // blends by the top bit
  }
#endif
};

// A table of 256 floats in memory, times a factor.
struct LongTable {
  static constexpr int kMost = 256;
  const float* entry;
  float factor;
  explicit LongTable(const float* entry, float factor = 1) : entry(entry), factor(factor) {}
  Floats operator[](Ints index) const {
#if GQ_LEVEL == 2
    return (Floats)_mm512_i32gather_ps((Register)index, entry, sizeof(float)) * factor;
#else
    return (Floats)_mm256_i32gather_ps(entry, (Register)index, sizeof(float)) * factor;
#endif
  }
};

}  // namespace GQ_NAMESPACE
}  // namespace gq
#endif
