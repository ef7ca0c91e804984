// The doors to linear codecs: threads and the floating-point environment around them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/kernels.hpp"

namespace gq {

// The bits of max |v| and the sum of v * v by the sum rule (0 unless `squares`), v = x + e.
void measure(const float* x, const float* e, std::size_t n, bool squares, std::uint32_t* largest, double* sum);

// The most bytes of a region of n integers up to `terms`.
std::size_t integers_bound(std::size_t n, std::uint32_t terms);

// m = own values as multiples (a value that is not finite stays), r the error; 1 if one is not finite, else 0.
// *clipped grows by how many are above what is sent of the largest.
int integers_lift(const float* x, const float* e, float* r, float* m, std::size_t n, const Lift& lift,
                  std::uint64_t first, const Stream& stream, std::uint64_t* clipped);

// Return the bytes of the region, -1 if a value is not finite, -2 if an integer is above `terms`.
std::int64_t integers_encode_own(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                                 const Lift& lift, std::uint64_t first, const Stream& stream, std::uint64_t* clipped);
std::int64_t integers_encode(const float* m, std::uint8_t* wire, std::size_t n, float unit, std::uint32_t terms);

// y = scale * the values, or y += them; as integers, if `whole`, else times the unit on the wire, which must be `unit`
// unless that is negative. Returns the bytes of the region at the beginning of `wire`, or -1 if it is malformed.
std::int64_t integers_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n, float unit,
                             bool whole, float scale, bool add, std::uint32_t terms);

}  // namespace gq
