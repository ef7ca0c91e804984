// Stochastic rounding of the values of one bucket to codes. The plain functions say what is meant; the vector ones
// give the same codes and errors with fewer operations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/kernels.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// One bucket's values in units of its norm: (v * before) * inverse. `before` keeps steps / norm from overflowing when
// the norm is tiny; `inverse` is large enough for the norm itself to reach the last level.
struct Unit {
  float before, inverse;
};

static inline Unit unit_of_norm(float norm, float steps) {
  const float before = norm < 0x1p-64f ? 0x1p64f : 1.0f;
  const float scaled = norm * before;
  if (scaled == 0) return {before, 0};
  float inverse = steps / scaled;
  while (inverse * scaled < steps) {
    std::uint32_t bits;
    std::memcpy(&bits, &inverse, sizeof bits);
    ++bits;  // the next float up
    std::memcpy(&inverse, &bits, sizeof bits);
  }
  return {before, inverse};
}

// True with probability `fraction` to 2^-16, for 16 random bits.
static inline bool rounds_up(float fraction, std::uint16_t random) {
  return float(random) + 0.5f < fraction * 65536.0f;
}

class Rounding {
 public:
  Rounding(const Levels& levels, float norm)
      : levels_(levels), norm_(norm), unit_(unit_of_norm(norm, levels.uniform ? levels.steps : 1.0f)) {
    if (levels.uniform) {
      offset_ = levels.stride == 2 ? 0.5f : 0.0f;
      limit_ = float((levels.center + levels.stride - 1) / levels.stride);
      base_ = levels.center / levels.stride;
      top_ = levels.count - 1;
    }
  }

  // The codes of v = x + e, and the errors r = v - decoded; e and r may be null.
  void encode(const float* x, const float* e, float* r, const std::uint16_t* random, std::size_t n,
              std::uint8_t* code) const {
    for (std::size_t i = 0; i < n; ++i) {
      const float v = e ? x[i] + e[i] : x[i];
      code[i] = levels_.uniform ? uniform_code(v, random[i]) : table_code(v, random[i]);
      if (r) r[i] = v - levels_.value[code[i]] * norm_;
    }
  }

 private:
  // Rounds the magnitude, counted in steps from `offset_` of a step beyond zero, then puts the sign back.
  std::uint8_t uniform_code(float v, std::uint16_t random) const {
    float steps = __builtin_fabsf(v) * unit_.before * unit_.inverse + offset_;
    steps = steps < limit_ ? steps : limit_;
    int whole = int(steps);
    whole += rounds_up(steps - float(whole), random);
    return __builtin_signbit(v) ? top_ - base_ - whole : base_ + whole;
  }

  std::uint8_t table_code(float v, std::uint16_t random) const {
    const int last = levels_.count - 1;
    float y = v * unit_.before * unit_.inverse;
    y = y > levels_.value[0] ? y : levels_.value[0];
    y = y < levels_.value[last] ? y : levels_.value[last];
    int low = 0, high = last;  // value[low] <= y, and y < value[high] unless high is the last
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (levels_.value[middle] <= y ? low : high) = middle;
    }
    const float fraction = (y - levels_.value[low]) * levels_.gap[low];
    return low + rounds_up(fraction < 1.0f ? fraction : 1.0f, random);
  }

  const Levels& levels_;
  float norm_;
  Unit unit_;
  float offset_ = 0, limit_ = 0;  // uniform: steps
  int base_ = 0, top_ = 0;        // uniform: the first code of the non-negative values, the last code
};

}  // namespace GQ_NAMESPACE
}  // namespace gq
