// Sums of products by the sum rule (sum.hpp).
#pragma once
#include "gq/sum.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// Adds a[0] * b[0] ... a[31] * b[31] to the 32 lanes.
static inline void add_row_of_products(Lanes& lanes, const float* a, const float* b) {
#if GQ_LEVEL == 2
  for (int q = 0; q < 4; ++q)
    lanes.part[q] += _mm512_cvtps_pd(_mm256_loadu_ps(a + 8 * q)) * _mm512_cvtps_pd(_mm256_loadu_ps(b + 8 * q));
#elif GQ_LEVEL == 1
  for (int q = 0; q < 8; ++q)
    lanes.part[q] += _mm256_cvtps_pd(_mm_loadu_ps(a + 4 * q)) * _mm256_cvtps_pd(_mm_loadu_ps(b + 4 * q));
#else
  for (int j = 0; j < 32; ++j) lanes.part[j] += double(a[j]) * double(b[j]);
#endif
}

static inline double block_product(const float* a, const float* b, std::size_t n) {
  Lanes lanes;
  std::size_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) add_row_of_products(lanes, a + i, b + i);
  if (i < n) {
    float rest_of_a[kSumLanes] = {}, rest_of_b[kSumLanes] = {};
    std::memcpy(rest_of_a, a + i, (n - i) * sizeof(float));
    std::memcpy(rest_of_b, b + i, (n - i) * sizeof(float));
    add_row_of_products(lanes, rest_of_a, rest_of_b);
  }
  return fold(lanes);
}

// The sum of a[i] * b[i] over a unit.
static double inner_product(const float* a, const float* b, std::size_t n) {
  double sum = 0;
  for (std::size_t done = 0; done < n; done += kSumBlock)
    sum += block_product(a + done, b + done, n - done < kSumBlock ? n - done : kSumBlock);
  return sum;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
