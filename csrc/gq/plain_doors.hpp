// The doors to plain numbers: threads and the floating-point environment around them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gq {

// Formats: 0 float16, 1 bfloat16, 3 float32. Return 1 if a value on the wire is not finite, else 0.
int plain_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, int format);
int plain_decode(const std::uint8_t* wire, float* y, std::size_t n, int format, float scale, bool add, bool streaming);

}  // namespace gq
