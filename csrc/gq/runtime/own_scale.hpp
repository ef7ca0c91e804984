// The scale of a tensor's own values: the largest magnitude, or a multiple of the root mean square where that is less.
// Of values that are rotated, the largest multiple of the root mean square of a bucket.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "gq/integers_doors.hpp"
#include "gq/multiples_doors.hpp"

namespace gq::runtime {

struct OwnScale {
  float largest = 0;
  double squares = 0;
  std::size_t count = 0;

  void add(const float* x, const float* e, const Region& region, double clip) {
    std::uint32_t bits;
    double summed;
    measure(x, e, {&region, 1}, clip > 0, &bits, &summed);
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    if (!(magnitude <= largest) && largest == largest) largest = magnitude;  // one that is not a number stays
    squares += summed;
    count += region.size;
  }

  void add_rotated(const float* x, const float* e, const Region& region, double clip) {
    double found;
    largest_deviation(x, e, {&region, 1}, clip, &found);
    const float scale = found < HUGE_VAL ? static_cast<float>(std::min(found, double(FLT_MAX))) : HUGE_VALF;
    largest = std::max(largest, scale);
  }

  bool finite() const { return largest < HUGE_VALF; }

  // clip: times the root mean square; 0 for no limit.
  float of(double clip) const {
    if (!finite() || !(clip > 0) || count == 0) return largest;
    const double clipped = clip * std::sqrt(squares / static_cast<double>(count));
    return clipped >= static_cast<double>(largest) ? largest : static_cast<float>(clipped);
  }
};

}  // namespace gq::runtime
