// Rounding of the values of one bucket to codes. The plain functions say what is meant; the vector ones give the same
// codes and errors with fewer operations.
#pragma once
#include "gq/kernels.hpp"
#include "gq/standard.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// One bucket's values in units of its scale: (v * before) * inverse. `before` keeps steps / scale from overflowing when
// the scale is tiny; `inverse` is large enough for the scale itself to reach the last level.
struct Unit {
  float before, inverse;
};

// Not so zero: whatever its inverse is, it multiplies zeros.
static inline bool is_tiny(float norm) { return norm > 0 && norm < 0x1p-64f; }

static inline Unit unit_of_norm(float norm, float steps) {
  const float before = is_tiny(norm) ? 0x1p64f : 1.0f;
  const float scaled = norm * before;
  if (scaled == 0) return {before, 0};
  float inverse = steps / scaled;
  while (inverse * scaled < steps) inverse = float_of(bits_of(inverse) + 1);  // the next float up
  return {before, inverse};
}

// True with probability `fraction` to 2^-16, for 16 random bits.
static inline bool rounds_up(float fraction, std::uint16_t random) {
  return float(random) + 0.5f < fraction * 65536.0f;
}

// To the nearest whole number, ties to the even one; 0 <= steps < 2^22.
static inline int round_even(float steps) { return int((steps + 0x1p23f) - 0x1p23f); }

// One value of a bucket to one code of uniform levels: the magnitude is counted in steps and rounded, then the sign
// chooses the side. Without a level at zero the first level is half a step away from it: the offset.
struct Uniform {
  Unit unit;
  float offset, limit;     // steps
  int positive, negative;  // the codes of no steps up and no steps down

  Uniform(const Levels& levels, float norm) : unit(unit_of_norm(norm, levels.steps)) {
    const bool zero_level = levels.stride == 1;
    offset = zero_level ? 0.0f : 0.5f;
    limit = float(zero_level ? levels.center : (levels.center + 1) / 2);
    positive = zero_level ? levels.center : (levels.center - 1) / 2;
    negative = zero_level ? levels.center : (levels.center + 1) / 2;
  }

  int code(float v, std::uint16_t random) const {
    const float steps = steps_of(v);
    const int whole = int(steps);
    return code_of(v, whole + rounds_up(steps - float(whole), random));
  }

 protected:
  float steps_of(float v) const {
    const float steps = float_of(magnitude(v)) * unit.before * unit.inverse + offset;
    return steps < limit ? steps : limit;
  }

  int code_of(float v, int rounded) const { return bits_of(v) >> 31 ? negative - rounded : positive + rounded; }
};

// To the nearest level; where zero is none, the first step of its sign is the smallest.
struct NearestUniform : Uniform {
  using Uniform::Uniform;

  int code(float v, std::uint16_t) const {
    const int rounded = round_even(steps_of(v));
    return code_of(v, rounded > 0 || offset == 0 ? rounded : 1);
  }
};

// In place of a draw d + 0.5, when values are rounded to the nearest level of a table: the largest float below 2^15.
constexpr float kNearestDraw = 0x1.fffffep14f;

// One value of a bucket to one of the two levels of a table around it.
struct Tabled {
  Unit unit;
  const Levels& levels;

  Tabled(const Levels& levels, float norm) : unit(unit_of_norm(norm, 1.0f)), levels(levels) {}

  int code(float v, std::uint16_t random) const {
    const int last = levels.count - 1;
    float y = v * unit.before * unit.inverse;
    y = y > levels.value[0] ? y : levels.value[0];
    y = y < levels.value[last] ? y : levels.value[last];
    int low = 0, high = last;  // value[low] <= y, and y < value[high] unless high is the last
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (levels.value[middle] <= y ? low : high) = middle;
    }
    const float fraction = (y - levels.value[low]) * levels.gap[low];
    if (levels.nearest) return low + (kNearestDraw < fraction * 65536.0f);
    return low + rounds_up(fraction < 1.0f ? fraction : 1.0f, random);
  }
};

// The codes of n values v = x + e, and the errors r = v - decoded; e and r may be null, and `random` where nothing is
// drawn.
template <class Coder>
static inline void round_plain(const Coder& coder, const Levels& levels, float norm, const float* x, const float* e,
                               float* r, const std::uint16_t* random, std::size_t n, std::uint8_t* code) {
  for (std::size_t i = 0; i < n; ++i) {
    const float v = e ? x[i] + e[i] : x[i];
    code[i] = static_cast<std::uint8_t>(coder.code(v, random ? random[i] : 0));
    if (r) r[i] = v - levels.value[code[i]] * norm;
  }
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
