// The doors to random bits, packed codes and level codecs: regions, threads and the floating-point environment around
// them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/regions.hpp"

namespace gq {

void philox(std::uint32_t word[4], std::uint32_t key0, std::uint32_t key1);
void random16(const Stream& stream, std::uint64_t first, std::size_t count, std::uint16_t* out);

// False if a code does not fit.
bool pack(const std::uint8_t* code, std::size_t n, int bits, std::uint8_t* wire);
void unpack(const std::uint8_t* wire, std::size_t n, int bits, std::uint8_t* code);

// Fill in `levels`; false if there are no such levels.
bool uniform_levels(int bits, bool zero_level, Levels& levels);
bool table_levels(int bits, const float* value, std::size_t count, Levels& levels);

// How the codes of small floats are numbered: from the most negative level up, as a hardware format's bits (the sign
// in the top bit), or as integers in two's complement.
enum class Order { kAscending, kSignAndMagnitude, kTwosComplement };

// `lowest`: the exponent of the smallest normal number; `last`: the number of the largest, counted from zero.
bool floating_levels(int bits, int mantissa, int lowest, int last, bool zero_level, Order order, Levels& levels);

// Bytes of all messages. The units of the regions' grids, here and below, are buckets: grid.parts is 1.
std::size_t levels_nbytes(const Regions& regions, const Levels& levels);

// Return 1 if a value or a norm is not finite, or a scale is none, 2 if there is no memory for buckets (or both), else
// 0. e and r may be null. `streams` has one for each segment.
int levels_encode(const float* x, const float* e, float* r, std::uint8_t* wire, const Levels& levels, bool l2,
                  const Regions& regions, const Stream* streams);
int levels_decode(const std::uint8_t* wire, float* y, const Levels& levels, const Regions& regions, float scale);
int levels_decode_add(const std::uint8_t* wire, float* y, const Levels& levels, const Regions& regions);

// The same of regions that lie apart: where each is.
int levels_encode_apart(const Vectors* vectors, std::uint8_t* wire, const Levels& levels, bool l2,
                        const Regions& regions, const Stream* streams);
int levels_decode_apart(const std::uint8_t* wire, float* const* y, const Levels& levels, const Regions& regions,
                        float scale);

// weight[bin] += norm^power for every value of every bucket; kSpreadBins bins, power 0, 1 or 2.
void levels_spread(const float* x, const float* e, bool l2, int power, const Regions& regions, double* weight);

}  // namespace gq
