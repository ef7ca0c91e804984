// The doors to one-bit messages: regions, threads and the floating-point environment around them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/regions.hpp"

namespace gq {

// Bytes of all messages.
std::size_t onebit_nbytes(const Regions& regions);

// Return the bytes written or read, or -1 if a value or a mean is not finite. e and r may be null.
std::int64_t onebit_encode(const float* x, const float* e, float* r, std::uint8_t* wire, const Regions& regions);
std::int64_t onebit_decode(const std::uint8_t* wire, float* y, const Regions& regions, float scale);
std::int64_t onebit_decode_add(const std::uint8_t* wire, float* y, const Regions& regions);

// The same of regions that lie apart: where each is.
std::int64_t onebit_encode_apart(const Vectors* vectors, std::uint8_t* wire, const Regions& regions);
std::int64_t onebit_decode_apart(const std::uint8_t* wire, float* const* y, const Regions& regions, float scale);

}  // namespace gq
