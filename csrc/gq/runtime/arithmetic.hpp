// Steps between encodings, element by element, on the threads of a kernel call.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/door.hpp"
#include "gq/wire.hpp"

namespace gq::runtime {

// With feedback larger magnitudes are refused where several errors of one value may meet, whose sum must stay finite.
constexpr float kLargestWithError = 0x1p126f;

// The float64 values behind a pointer to values of a wide tensor.
inline const double* doubles(const float* values) { return reinterpret_cast<const double*>(values); }
inline double* doubles(float* values) { return reinterpret_cast<double*>(values); }

// y := x * factor, rounded to their type; y may be x.
template <class Number>
void multiply(const Number* x, double factor, Number* y, std::size_t n) {
  const auto by = static_cast<Number>(factor);
  by_elements(n, [&](std::size_t begin, std::size_t size) {
    for (std::size_t at = begin; at < begin + size; ++at) y[at] = x[at] * by;
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
template <class Number>
bool exceeds(const Number* x, std::size_t n, float limit) {
  return by_elements(n, [&](std::size_t begin, std::size_t size) {
           int above = 0;
           for (std::size_t at = begin; at < begin + size; ++at) above |= x[at] > limit || x[at] < -limit;
           return above;
         }) != 0;
}

// --- float64 ---

inline bool finite(double value) { return value - value == 0; }

// Is a value not finite?
inline bool wide_flawed(const double* x, std::size_t n) {
  return by_elements(n, [&](std::size_t begin, std::size_t size) {
           int bad = 0;
           for (std::size_t at = begin; at < begin + size; ++at) bad |= !finite(x[at]);
           return bad;
         }) != 0;
}

// y := float32 values.
inline void widen_floats(const std::uint8_t* x, double* y, std::size_t n) {
  by_elements(n, [&](std::size_t begin, std::size_t size) {
    for (std::size_t at = begin; at < begin + size; ++at) y[at] = gq::load<float>(x + at * sizeof(float));
    return 0;
  });
}

// y := x + e, as bytes; e may be null, and y be x. Is a value not finite?
inline bool wide_add(const double* x, const float* e, std::uint8_t* y, std::size_t n) {
  return by_elements(n, [&](std::size_t begin, std::size_t size) {
           int bad = 0;
           for (std::size_t at = begin; at < begin + size; ++at) {
             const double sum = e ? x[at] + double(e[at]) : x[at];
             gq::store(y + at * sizeof sum, sum);
             bad |= !finite(sum);
           }
           return bad;
         }) != 0;
}

// y *= factor. Is a value not finite then?
inline bool wide_scale(double* y, double factor, std::size_t n) {
  multiply(y, factor, y, n);
  return wide_flawed(y, n);
}

}  // namespace gq::runtime
