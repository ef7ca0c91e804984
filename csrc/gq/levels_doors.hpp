// The doors to random bits, packed codes and level codecs: threads and the floating-point environment around them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/kernels.hpp"

namespace gq {

void philox(std::uint32_t word[4], std::uint32_t key0, std::uint32_t key1);
void random16(const Stream& stream, std::uint64_t first, std::size_t count, std::uint16_t* out);

// False if a code does not fit.
bool pack(const std::uint8_t* code, std::size_t n, int bits, std::uint8_t* wire);
void unpack(const std::uint8_t* wire, std::size_t n, int bits, std::uint8_t* code);

// Fill in `levels`; false if there are no such levels.
bool uniform_levels(int bits, bool zero_level, Levels& levels);
bool table_levels(int bits, const float* value, std::size_t count, Levels& levels);

// Bytes of the region of n elements. The units of the grid, here and below, are buckets: grid.parts is 1.
std::size_t levels_nbytes(std::size_t n, int bits, const Grid& grid);

// Return 1 if a value or a norm is not finite, else 0. e and r may be null.
int levels_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, const Levels& levels,
                  bool l2, const Grid& grid, const Stream& stream);
int levels_decode(const std::uint8_t* wire, float* y, std::size_t n, const Levels& levels, const Grid& grid,
                  float scale);
int levels_decode_add(const std::uint8_t* wire, float* y, std::size_t n, const Levels& levels, const Grid& grid);

}  // namespace gq
