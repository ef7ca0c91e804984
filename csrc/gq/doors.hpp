// What the Cython doors call: the kernels of the level in use, inside one floating-point environment, spread over
// threads(). The bytes are the same for any number of threads. Here: casts and sums, selection.
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

// Returns how many there are; more than `capacity` if they were not all stored.
std::size_t collect(const float* x, const float* e, float* r, std::size_t n, std::uint32_t floor_bits,
                    std::uint32_t* index, float* value, std::size_t capacity, bool streaming);
void histogram(const float* x, const float* e, std::size_t n, std::int64_t* counts);
std::uint32_t kth(const float* value, std::size_t n, std::size_t k, int sign, std::size_t* above);
std::size_t keep(std::uint32_t* index, float* value, std::size_t n, std::uint32_t positive_bits,
                 std::uint32_t negative_bits, std::int64_t* ties, bool joint);
void count_signs(const float* v, std::size_t n, std::size_t* positives, std::size_t* negatives);

}  // namespace gq
