// What a bucket of a level codec takes on the wire, and what its codes stand for.
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

// Bytes of the first `buckets` buckets of a region.
inline std::size_t levels_offset(const Grid& grid, std::size_t n, std::size_t buckets, int bits) {
  return total_of(grid, n, buckets, [bits](std::size_t height) { return bucket_size(height, bits); });
}

// Finite, with the sign bit clear.
inline bool is_norm(float norm) { return bits_of(norm) < kInfinity; }

// A code of uniform levels, in units of the norm.
inline float uniform_level(const Levels& levels, int code) {
  const int last = levels.count - 1, known = code < last ? code : last;
  return float(known * levels.stride - levels.center) * levels.unit;
}

}  // namespace
}  // namespace gq
