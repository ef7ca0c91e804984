// The doors to one-bit messages: regions, threads and the floating-point environment around them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/regions.hpp"

namespace gq {

// Bytes of all messages.
std::size_t onebit_nbytes(const Regions& regions);

// Return 1 if a value or a mean is not finite, else 0. e and r may be null.
int onebit_encode(const float* x, const float* e, float* r, std::uint8_t* wire, const Regions& regions);
int onebit_decode(const std::uint8_t* wire, float* y, const Regions& regions, float scale);
int onebit_decode_add(const std::uint8_t* wire, float* y, const Regions& regions);

}  // namespace gq
