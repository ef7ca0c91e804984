// float32 from and to float16, bfloat16 and float64, rounding to nearest even; and the elementwise work of codecs that
// send plain numbers. All loops here vectorise by themselves, except float16, which has instructions of its own.
#pragma once
#include "gq/formats.hpp"
#include "gq/standard.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// The elements that F16C converts, eight at a time; the plain loops below do the rest.
template <class Format>
static inline std::size_t widen_eights(const std::uint8_t*, float*, std::size_t) {
  return 0;
}

template <class Format>
static inline std::size_t narrow_eights(const float*, std::uint8_t*, std::size_t) {
  return 0;
}

#if GQ_LEVEL >= 1
template <>
inline std::size_t widen_eights<Float16>(const std::uint8_t* source, float* y, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 2 * i))));
  return i;
}

template <>
inline std::size_t narrow_eights<Float16>(const float* x, std::uint8_t* target, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + 2 * i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  return i;
}
#endif

static int all_finite(const float* x, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = magnitude(x[i]) > largest ? magnitude(x[i]) : largest;
  return largest < kInfinity;
}

// Blocks stay in the first cache between the conversion and the check of its results.
constexpr std::size_t kCastBlock = 2048;

template <class Format>
static int widen_from(const std::uint8_t* source, float* y, std::size_t n) {
  using Number = typename Format::Number;
  int bad = 0;
  for (std::size_t begin = 0; begin < n; begin += kCastBlock) {
    const std::size_t count = n - begin < kCastBlock ? n - begin : kCastBlock;
    const std::uint8_t* from = source + begin * sizeof(Number);
    for (std::size_t i = widen_eights<Format>(from, y + begin, count); i < count; ++i)
      y[begin + i] = Format::widen(load<Number>(from + i * sizeof(Number)));
    bad |= !all_finite(y + begin, count);
  }
  return bad;
}

template <class Format>
static int narrow_to(const float* x, std::uint8_t* target, std::size_t n) {
  using Number = typename Format::Number;
  int bad = 0;
  for (std::size_t begin = 0; begin < n; begin += kCastBlock) {
    const std::size_t count = n - begin < kCastBlock ? n - begin : kCastBlock;
    std::uint8_t* to = target + begin * sizeof(Number);
    for (std::size_t i = narrow_eights<Format>(x + begin, to, count); i < count; ++i)
      store(to + i * sizeof(Number), Format::narrow(x[begin + i]));
    for (std::size_t i = 0; i < count; ++i) bad |= !Format::finite(load<Number>(to + i * sizeof(Number)));
  }
  return bad;
}

static int widen(const std::uint8_t* source, float* y, std::size_t n, int format) {
  return format == 0   ? widen_from<Float16>(source, y, n)
         : format == 1 ? widen_from<Bfloat16>(source, y, n)
                       : widen_from<Float64>(source, y, n);
}

static int narrow(const float* x, std::uint8_t* target, std::size_t n, int format) {
  return format == 0   ? narrow_to<Float16>(x, target, n)
         : format == 1 ? narrow_to<Bfloat16>(x, target, n)
                       : narrow_to<Float64>(x, target, n);
}

// y = x + e, or x if e is null, as float32s at any address.
static int add_finite(const float* x, const float* e, std::uint8_t* y, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float v = e ? x[i] + e[i] : x[i];
    store(y + 4 * i, v);
    largest = magnitude(v) > largest ? magnitude(v) : largest;
  }
  return largest >= kInfinity;
}

// y += the float32s at `wire`.
static void add(const std::uint8_t* wire, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += load<float>(wire + 4 * i);
}

static int scale(float* y, float factor, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    y[i] *= factor;
    largest = magnitude(y[i]) > largest ? magnitude(y[i]) : largest;
  }
  return largest >= kInfinity;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
