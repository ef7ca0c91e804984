// What a bucket of EDEN takes on the wire: per stretch a scale and codes, or its values if they are few.
#pragma once
#include "gq/rotated_wire.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

constexpr std::size_t kLeastRotated = 32;  // shorter stretches are sent as float32: a rotation of few values is biased
constexpr std::size_t kManyRotated = 256;  // shorter ones are rotated in four rounds, others in two

// The values of a bucket's next stretch, of `left`: the largest power of two, as long as that is enough to be rotated,
// then the rest. Two halves of other lengths mix too little, and a scale for both is wrong for each.
inline std::size_t eden_stretch(std::size_t left) {
  return left < kLeastRotated ? left : std::size_t(1) << (63 - __builtin_clzll(left));
}

inline std::size_t eden_stretch_size(std::size_t n, int bits) {
  return n < kLeastRotated ? n * sizeof(float) : bucket_size(n, bits);
}

inline std::size_t eden_size(std::size_t height, int bits) {
  std::size_t size = 0;
  for (std::size_t stretch; height > 0; height -= stretch) {
    stretch = eden_stretch(height);
    size += eden_stretch_size(stretch, bits);
  }
  return size;
}

inline int eden_rounds(std::size_t height) { return height < kManyRotated ? 4 : 2; }

}  // namespace
}  // namespace gq
