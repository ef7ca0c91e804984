// The sum rule: one order of additions for all instruction sets, so that sums that reach the wire have the same bits.
//
// Sums are float64. Element i of a unit goes to lane i mod 32, each lane adds in index order, then the lanes fold:
// lane[j] += lane[j + 16] for j < 16, then 8, 4, 2, 1. Units over 4096 go by blocks of 4096 elements whose sums are
// added in order. An element outside the summed set adds +0.0, that is nothing: no lane is ever -0.0.
#pragma once
#include "gq/standard.hpp"

#if GQ_LEVEL >= 1
#include <immintrin.h>
#endif

namespace gq {
namespace GQ_NAMESPACE {

constexpr std::size_t kSumLanes = 32;
constexpr std::size_t kSumBlock = 4096;

// Lanes: 32 running sums. part[q] holds the lanes [q * width, (q + 1) * width).
#if GQ_LEVEL == 2

struct Lanes {
  __m512d part[4] = {};
};

static inline double fold(const Lanes& lanes) {
  const __m512d sixteen_low = _mm512_add_pd(lanes.part[0], lanes.part[2]);
  const __m512d sixteen_high = _mm512_add_pd(lanes.part[1], lanes.part[3]);
  const __m512d eight = _mm512_add_pd(sixteen_low, sixteen_high);
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

#elif GQ_LEVEL == 1

struct Lanes {
  __m256d part[8];

  Lanes() {
    __m256d zero = _mm256_setzero_pd();
    asm("" : "+x"(zero));  // of known zeros GCC makes a string instruction, which takes longer than a short column
    for (__m256d& each : part) each = zero;
  }
};

static inline double fold(const Lanes& lanes) {
  __m256d sixteen[4];
  for (int q = 0; q < 4; ++q) sixteen[q] = _mm256_add_pd(lanes.part[q], lanes.part[q + 4]);
  const __m256d eight_low = _mm256_add_pd(sixteen[0], sixteen[2]);
  const __m256d eight_high = _mm256_add_pd(sixteen[1], sixteen[3]);
  const __m256d four = _mm256_add_pd(eight_low, eight_high);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

#else

struct Lanes {
  double part[32] = {};
};

static inline double fold(Lanes lanes) {
  for (std::size_t width = kSumLanes / 2; width > 0; width /= 2)
    for (std::size_t j = 0; j < width; ++j) lanes.part[j] += lanes.part[j + width];
  return lanes.part[0];
}

#endif

// Adds term(v[0]) ... term(v[31]) to the 32 lanes. `term` maps a double, or a vector of doubles, to its like.
template <class Term>
static inline void add_row(Lanes& lanes, const float* v, Term term) {
#if GQ_LEVEL == 2
  for (int q = 0; q < 4; ++q) lanes.part[q] += term(_mm512_cvtps_pd(_mm256_loadu_ps(v + 8 * q)));
#elif GQ_LEVEL == 1
  for (int q = 0; q < 8; ++q) lanes.part[q] += term(_mm256_cvtps_pd(_mm_loadu_ps(v + 4 * q)));
#else
  for (int j = 0; j < 32; ++j) lanes.part[j] += term(static_cast<double>(v[j]));
#endif
}

// The same for the first n < 32 of a row.
template <class Term>
static inline void add_part_of_row(Lanes& lanes, const float* v, std::size_t n, Term term) {
#if GQ_LEVEL == 2
  const std::uint32_t valid = _bzhi_u32(~0u, static_cast<unsigned>(n));
  for (int q = 0; q < 4; ++q)
    lanes.part[q] += term(_mm512_cvtps_pd(_mm256_maskz_loadu_ps(static_cast<__mmask8>(valid >> 8 * q), v + 8 * q)));
#elif GQ_LEVEL == 1
  const __m128i place = _mm_setr_epi32(0, 1, 2, 3);
  for (int q = 0; q < 8; ++q) {
    const __m128i valid = _mm_cmpgt_epi32(_mm_set1_epi32(static_cast<int>(n) - 4 * q), place);
    lanes.part[q] += term(_mm256_cvtps_pd(_mm_maskload_ps(v + 4 * q, valid)));
  }
#else
  for (std::size_t j = 0; j < n; ++j) lanes.part[j] += term(static_cast<double>(v[j]));
#endif
}

// The sum of term(v[i]) over n <= 4096 elements: one block of the rule. term(0.0) must be 0.0. A unit's sum is its
// blocks' sums added in order, starting with 0.0.
template <class Term>
static inline double block_sum(const float* v, std::size_t n, Term term) {
  Lanes lanes;
  std::size_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) add_row(lanes, v + i, term);
  if (i < n) add_part_of_row(lanes, v + i, n - i, term);
  return fold(lanes);
}

struct Itself {
  template <class Number>
  Number operator()(Number v) const {
    return v;
  }
};

struct Square {
  template <class Number>
  Number operator()(Number v) const {
    return v * v;
  }
};

}  // namespace GQ_NAMESPACE
}  // namespace gq
