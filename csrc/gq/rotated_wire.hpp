// What rotated buckets of level codecs and of EDEN send beside their codes.
#pragma once
#include "gq/levels_wire.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

constexpr std::size_t kKeyBytes = 8;  // of the rotations, in front of a region's buckets
constexpr int kRotationRounds = 1;    // for codecs that round at random after it; EDEN uses two or four

// May a bucket of n values have this scale, its largest level being `reach`? A rotated value is at most the norm,
// scale * reach * sqrt(n), and twice that must be finite.
inline bool is_rotated_scale(float scale, float reach, std::size_t n) {
  return is_norm(scale) && is_finite(2 * scale * reach * float(__builtin_sqrt(double(n))));
}

}  // namespace
}  // namespace gq
