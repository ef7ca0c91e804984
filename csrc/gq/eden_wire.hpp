// What a bucket of EDEN takes on the wire: a scale and codes, or its values if they are few.
#pragma once
#include "gq/rotated_wire.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

constexpr std::size_t kLeastRotated = 32;  // below, a rotation has too few outcomes to be without bias
constexpr std::size_t kManyRotated = 256;  // below, it takes four rounds to be; else two

inline std::size_t eden_size(std::size_t height, int bits) {
  return height < kLeastRotated ? height * sizeof(float) : bucket_size(height, bits);
}

inline int eden_rounds(std::size_t height) { return height < kManyRotated ? 4 : 2; }

}  // namespace
}  // namespace gq
