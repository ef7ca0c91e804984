// What a bucket of a level codec takes on the wire, and what its scale and codes stand for.
#pragma once
#include "gq/grid.hpp"
#include "gq/kernels.hpp"
#include "gq/standard.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

constexpr std::size_t kNormBytes = 4;
constexpr float kLargestWithError = 0x1p126f;  // an error is at most twice the norm, and must stay finite

inline std::size_t bucket_size(std::size_t height, int bits) { return kNormBytes + packed_size(height, bits); }

inline std::size_t scale_size(const Levels& levels) { return levels.scale == Scale::kNorm ? kNormBytes : 1; }

// Bytes of the first `buckets` buckets of a region.
inline std::size_t levels_offset(const Grid& grid, std::size_t n, std::size_t buckets, const Levels& levels) {
  return total_of(grid, n, buckets,
                  [&levels](std::size_t height) { return scale_size(levels) + packed_size(height, levels.bits); });
}

// Finite, with the sign bit clear.
inline bool is_norm(float norm) { return bits_of(norm) < kInfinity; }

// 2^(biased - 127), for the exponents of the OCP format E8M0, 0 to 254.
inline float power_of_two(int biased) { return float_of(biased > 0 ? std::uint32_t(biased) << 23 : 0x00400000); }

// Of a bucket's scale; the largest is 254.
inline int biased_scale(const Levels& levels, float norm) {
  int biased = int(bits_of(norm) >> 23) - (int(bits_of(levels.reach) >> 23) - 127);
  biased = biased > 0 ? biased : 0;
  if (levels.scale == Scale::kPowerAbove && biased < 254 && norm > levels.reach * power_of_two(biased)) ++biased;
  return biased;
}

// May a bucket have this scale? What it decodes to must be finite.
inline bool is_scale(const Levels& levels, float scale) { return is_norm(scale) && is_norm(levels.reach * scale); }

// A scale from the wire, negative if there is none that a bucket may have.
inline float scale_from(const Levels& levels, const std::uint8_t* wire) {
  if (levels.scale != Scale::kNorm && *wire == 255) return -1.0f;
  const float scale = levels.scale == Scale::kNorm ? load<float>(wire) : power_of_two(*wire);
  return is_scale(levels, scale) ? scale : -1.0f;
}

inline int code_of_number(const SmallFloats& floats, int number, bool negative) {
  const int flip = negative ? floats.flip : 0, offset = negative ? floats.negative : 0;
  return ((number ^ flip) + offset + floats.positive) & floats.mask;
}

inline float level_of_number(const SmallFloats& floats, int number) {
  const int above = number >> floats.mantissa;  // the binade, counted from zero
  if (above == 0) return float(number) * power_of_two(floats.lowest - floats.mantissa);
  return float_of(std::uint32_t(number << (23 - floats.mantissa)) + (std::uint32_t(floats.lowest - 1) << 23));
}

// A code of uniform levels, in units of the norm.
inline float uniform_level(const Levels& levels, int code) {
  const int last = levels.count - 1, known = code < last ? code : last;
  return float(known * levels.stride - levels.center) * levels.unit;
}

}  // namespace
}  // namespace gq
