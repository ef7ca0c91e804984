// The doors to linear codecs: regions, threads and the floating-point environment around them. `units` has one for each
// region, `streams` one for each segment.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/regions.hpp"

namespace gq {

// Of each region the bits of max |v| and the sum of v * v by the sum rule (0 unless `squares`), v = x + e.
void measure(const float* x, const float* e, const Regions& regions, bool squares, std::uint32_t* largest,
             double* totals);

// The most bytes of the messages of integers up to `terms`.
std::size_t integers_bound(const Regions& regions, std::uint32_t terms);

// m = own values as multiples (a value that is not finite stays), r the error; 1 if one is not finite, else 0.
// *clipped grows by how many are above what is sent of the largest.
int integers_quantize(const float* x, const float* e, float* r, float* m, const float* units, bool ternary,
                      const Regions& regions, const Stream* streams, std::uint64_t* clipped);

// Return the bytes of all messages, -1 if a value or a unit is not finite, -2 if an integer is above `terms`.
std::int64_t integers_encode_own(const float* x, const float* e, float* r, std::uint8_t* wire, const float* units,
                                 bool ternary, const Regions& regions, const Stream* streams, std::uint64_t* clipped);
std::int64_t integers_encode(const float* m, std::uint8_t* wire, const float* units, std::uint32_t terms,
                             const Regions& regions);

// y = scale * the values, or y += them; as integers, if `whole`, else times the unit on the wire, which must be the
// region's unless that is negative. Returns the bytes of the messages at the beginning of `wire`, or -1 if one is
// malformed.
std::int64_t integers_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, const float* units, bool whole,
                             float scale, bool add, std::uint32_t terms, const Regions& regions);

}  // namespace gq
