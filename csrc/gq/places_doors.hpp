// The places of chosen elements as bytes, and values added at such places. A message has blocks of 65536 elements: the
// offsets of the chosen ones, or a bit for each element where that is shorter.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gq {

// The bytes of `count` places, ascending and below `elements`.
std::size_t places_nbytes(const std::uint32_t* index, std::size_t count, std::size_t elements);

// Writes them; returns the bytes.
std::size_t places_write(const std::uint32_t* index, std::size_t count, std::size_t elements, std::uint8_t* out);

enum PlacesFault { kPlacesEndEarly = -1, kPlacesDoNotAscend = -2, kPlacesAreMore = -3, kPlacesAreFewer = -4 };

// index := the places at the beginning of `wire`, `count` of them; returns their bytes, or a fault.
std::int64_t places_read(const std::uint8_t* wire, std::size_t nbytes, std::size_t elements, std::uint32_t* index,
                         std::size_t count);

// y[index[i]] += the i-th float32 of `values`, or y[index[i]] = that. False if a place is not below n: what comes after
// it is left out.
bool add_at(float* y, std::size_t n, const std::uint32_t* index, const std::uint8_t* values, std::size_t count);
bool put_at(float* y, std::size_t n, const std::uint32_t* index, const std::uint8_t* values, std::size_t count);

}  // namespace gq
