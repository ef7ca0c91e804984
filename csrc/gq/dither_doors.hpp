// Matrices as steps of their rows, see dither.hpp; on threads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/kernels.hpp"

namespace gq {

void largest_of_rows(const float* x, std::size_t rows, std::size_t columns, float* largest);

// `begin` is the number of the first value in the stream of random bits.
void dither_encode(const float* x, std::size_t n, std::size_t columns, const float* step, const Dither& dither,
                   const Stream& stream, std::uint64_t begin, std::uint8_t* wire);

void dither_decode(const std::uint8_t* wire, std::size_t n, std::size_t columns, const float* step, const float* number,
                   int bits, bool shifts, int zero, const Stream& stream, std::uint64_t begin, float* y);

}  // namespace gq
