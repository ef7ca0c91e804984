// What rotated buckets of level codecs and of EDEN send beside their codes.
#pragma once
#include "gq/levels_wire.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

constexpr std::size_t kKeyBytes = 8;  // of the rotations, in front of a region's buckets
constexpr int kRotationRounds = 1;    // where values are rounded at random behind it; EDEN takes more

// May a bucket of n values have this scale, its largest level being `reach`? Twice the largest value that it may decode
// to is finite: all of its norm in one value.
inline bool is_rotated_scale(float scale, float reach, std::size_t n) {
  return is_norm(scale) && is_finite(2 * scale * reach * float(__builtin_sqrt(double(n))));
}

}  // namespace
}  // namespace gq
