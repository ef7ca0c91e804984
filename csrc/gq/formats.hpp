// The floating-point formats other than float32: from and to it, rounding to nearest even.
#pragma once
#include "gq/standard.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// Formats by number: 0 float16, 1 bfloat16, 2 float64, 3 float32.
constexpr int kFloat32 = 3;

struct Float16 {
  using Number = std::uint16_t;

  static float widen(Number half) {
    const std::uint32_t sign = std::uint32_t(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest < 0x0400) return float_of(sign | bits_of(float(rest) * 0x1p-24f));  // zero or denormal
    if (rest <= 0x7c00) return float_of(sign | (rest == 0x7c00 ? kInfinity : (rest << 13) + 0x38000000));
    return float_of(sign | 0x7fc00000 | rest << 13);  // NaN, made quiet
  }

  static Number narrow(float v) {
    const std::uint32_t sign = bits_of(v) >> 16 & 0x8000, rest = magnitude(v);
    if (rest > kInfinity) return Number(sign | 0x7e00 | (rest >> 13 & 0x03ff));  // NaN, made quiet
    if (rest >= 0x47800000) return Number(sign | 0x7c00);                        // 65536 and more
    // Below 2^-14 the step is 2^-24, which is the float32 step at 0.5: this addition rounds to it.
    if (rest < 0x38800000) return Number(sign | (bits_of(float_of(rest) + 0.5f) - bits_of(0.5f)));
    return Number(sign | ((rest - 0x38000000 + 0x0fff + (rest >> 13 & 1)) >> 13));
  }

  static bool finite(Number half) { return (half & 0x7c00) != 0x7c00; }
};

struct Bfloat16 {
  using Number = std::uint16_t;

  static float widen(Number half) { return float_of(std::uint32_t(half) << 16); }

  static Number narrow(float v) {
    const std::uint32_t bits = bits_of(v), nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return Number(magnitude(v) > kInfinity ? bits >> 16 | 0x0040 : nearest);
  }

  static bool finite(Number half) { return (half & 0x7f80) != 0x7f80; }
};

struct Float64 {
  using Number = double;

  static float widen(double v) { return float(v); }
  static double narrow(float v) { return double(v); }
  static bool finite(double v) { return (load<std::uint64_t>(&v) >> 52 & 0x7ff) != 0x7ff; }
};

}  // namespace GQ_NAMESPACE
}  // namespace gq
