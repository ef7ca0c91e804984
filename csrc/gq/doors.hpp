// What the Cython doors call: the kernels of the level in use, inside one floating-point environment, spread over
// threads(). The bytes are the same for any number of threads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/kernels.hpp"

namespace gq {

int widen(const std::uint8_t* source, float* y, std::size_t n, int format);
int narrow(const float* x, std::uint8_t* target, std::size_t n, int format);
int add_finite(const float* x, const float* e, std::uint8_t* y, std::size_t n);
int scale(float* y, float factor, std::size_t n);
void add(const std::uint8_t* wire, float* y, std::size_t n);
int all_finite(const float* x, std::size_t n);

std::size_t onebit_nbytes(const Grid& grid, std::size_t n);
int onebit_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, const Grid& grid);
int onebit_decode(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid, float scale);
int onebit_decode_add(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid);

}  // namespace gq
