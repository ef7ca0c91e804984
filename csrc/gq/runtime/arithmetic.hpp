// Steps between encodings, element by element, on the threads of a kernel call.
#pragma once
#include <cstddef>

#include "gq/door.hpp"

namespace gq::runtime {

// With feedback larger magnitudes are refused where several errors of one value may meet, whose sum must stay finite.
constexpr float kLargestWithError = 0x1p126f;

// y := x * factor; y may be x.
inline void multiply(const float* x, float factor, float* y, std::size_t n) {
  by_elements(n, [&](std::size_t begin, std::size_t size) {
    for (std::size_t at = begin; at < begin + size; ++at) y[at] = x[at] * factor;
    return 0;
  });
}

// y := a - b; y may be a or b.
inline void subtract(const float* a, const float* b, float* y, std::size_t n) {
  by_elements(n, [&](std::size_t begin, std::size_t size) {
    for (std::size_t at = begin; at < begin + size; ++at) y[at] = a[at] - b[at];
    return 0;
  });
}

// y += a.
inline void accumulate(const float* a, float* y, std::size_t n) {
  by_elements(n, [&](std::size_t begin, std::size_t size) {
    for (std::size_t at = begin; at < begin + size; ++at) y[at] += a[at];
    return 0;
  });
}

// Is a magnitude above the limit?
inline bool exceeds(const float* x, std::size_t n, float limit) {
  return by_elements(n, [&](std::size_t begin, std::size_t size) {
           int above = 0;
           for (std::size_t at = begin; at < begin + size; ++at) above |= x[at] > limit || x[at] < -limit;
           return above;
         }) != 0;
}

}  // namespace gq::runtime
