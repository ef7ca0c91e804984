// Which own values of a linear codec are sent, as what, and what of them stays.
#pragma once
#include "gq/kernels.hpp"
#include "gq/levels_round.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// A number that is not negative, with the sign of v.
static inline float with_sign_of(float v, float number) {
  return float_of(bits_of(number) | (bits_of(v) & ~kMagnitude));
}

// What stands for v in a vector of integers: a value that is not finite stays.
static inline float multiple_of(float v, bool sent, bool finite) {
  return !finite ? v : sent ? with_sign_of(v, 1.0f) : 0.0f;
}

// By threshold, or at random with probability |v| / unit (to 2^-17).
struct Sending {
  float unit;
  bool ternary;
  Unit share;  // of a magnitude in the unit

  explicit Sending(const Quantizer& quantizer)
      : unit(quantizer.unit), ternary(quantizer.ternary), share(unit_of_norm(quantizer.unit, 1.0f)) {}

  bool operator()(float v, std::uint16_t random) const {
    const float size = float_of(magnitude(v));
    return ternary ? rounds_up(size * share.before * share.inverse, random) : size >= unit;
  }

  float error(float v, bool sent) const { return v - (sent ? with_sign_of(v, unit) : 0.0f); }
};

}  // namespace GQ_NAMESPACE
}  // namespace gq
