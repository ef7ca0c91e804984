// The doors to rotations and to EDEN.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/regions.hpp"

namespace gq {

// y = the units of x rotated, or rotated back; y may be x.
void rotate(const float* x, float* y, std::size_t n, const Grid& grid, std::uint64_t key, int rounds, bool back);

// Bytes of all messages, of codes of 1 to 4 bits. The units of the regions' grids are buckets: grid.parts is 1.
std::size_t eden_nbytes(const Regions& regions, int bits);

// Return 0, 1 if a value or a norm cannot be sent or a scale is none, 2 if there is no memory for buckets.
int eden_encode(const float* x, const float* e, float* r, std::uint8_t* wire, int bits, bool contracted,
                const Regions& regions, const Stream* streams);
int eden_decode(const std::uint8_t* wire, float* y, int bits, const Regions& regions, float scale, bool add);

}  // namespace gq
