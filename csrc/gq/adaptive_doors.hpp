// The doors to adaptive messages: regions, threads and the floating-point environment around them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/regions.hpp"

namespace gq {

// Makes ascending indices into the elements of all regions indices into the region that each lies in, of which region k
// has counts[k].
void split(std::uint32_t* index, std::size_t count, const Regions& regions, std::int64_t* counts);

// The most values that select_columns selects, and select_regions.
std::size_t select_bound(const Regions& regions, std::size_t pi);
std::size_t select_regions_bound(const Regions& regions, std::size_t pi);

// The largest of each column, those of region k, counts[k] of them, after those of the regions before it. Returns how
// many there are, or -1 if a value is not finite.
std::int64_t select_columns(const float* x, const float* e, float* r, const Regions& regions, std::size_t pi,
                            bool separate, std::uint32_t* index, float* value, std::int64_t* counts);

// As select_columns, but the largest of each region, which has at most kTallestRegion elements, wherever its columns
// are.
constexpr std::size_t kTallestRegion = 32767;
std::int64_t select_regions(const float* x, const float* e, float* r, const Regions& regions, std::size_t pi,
                            bool separate, std::uint32_t* index, float* value, std::int64_t* counts);

// The k largest of a vector of at most kTallestRegion elements; returns as select_columns.
std::int64_t select_most(const float* x, const float* e, float* r, std::size_t n, std::size_t k, bool separate,
                         std::uint32_t* index, float* value);

// Bytes of the messages of `count` kept values.
std::size_t adaptive_nbytes(const Regions& regions, std::size_t count);

// Returns the bytes of all messages, or -1 if a value is not finite.
std::int64_t adaptive_encode(const std::uint32_t* index, const float* value, const std::int64_t* counts, float* r,
                             std::uint8_t* wire, const Regions& regions);

// Return the bytes of the messages at the beginning of `wire`, or -1 if one is malformed.
std::int64_t adaptive_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, const Regions& regions,
                             float scale, bool streaming);
std::int64_t adaptive_decode_add(const std::uint8_t* wire, std::size_t nbytes, float* y, const Regions& regions);

}  // namespace gq
