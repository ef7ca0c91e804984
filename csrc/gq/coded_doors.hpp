// The doors to level codecs with an entropy code.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/regions.hpp"

namespace gq {

// The most bytes that the messages of all regions take: a little more than without an entropy code.
std::size_t coded_bound(const Regions& regions, const Levels& levels);

constexpr std::int64_t kNotFinite = -1, kMalformed = -2, kNoMemory = -3;

// As levels_encode, but returns the bytes written, kNotFinite or kNoMemory. `wire` has room for the bound.
std::int64_t coded_encode(const float* x, const float* e, float* r, std::uint8_t* wire, const Levels& levels,
                          Coding coding, bool l2, const Regions& regions, const Stream* streams);
// As levels_decode and levels_decode_add, but return the bytes read, kMalformed or kNoMemory.
std::int64_t coded_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, const Levels& levels, Coding coding,
                          const Regions& regions, float scale, bool add);

// Elias' code of these levels, of which none needs a pattern of more than 16 bits.
EliasCode elias_code(const Levels& levels);

}  // namespace gq
