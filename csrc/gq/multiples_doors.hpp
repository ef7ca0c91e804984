// Linear codecs with several steps: own values rounded to whole multiples of a shared unit, rotated or not. Lists of
// regions as in regions.hpp; `units` has one for each.
//
// Rotated, the units of the grid are: one round of rotation.hpp, by the bits of the unit as the key, alike on all
// ranks.
#pragma once
#include "gq/kernels.hpp"
#include "gq/regions.hpp"

namespace gq {

// For each region, largest_deviation of Kernels.
void largest_deviation(const float* x, const float* e, const Regions& regions, double clip, double* found);

// m = x + e as multiples, r (if given) the error; m may be x. Bit 0 of the result: a value, or an error that is kept,
// is not finite; then x + e stays in m, of that unit of the grid. Bit 1: no memory.
int multiples_quantize(const float* x, const float* e, float* r, float* m, const float* units, int steps, bool rotated,
                       const Regions& regions, const Stream* streams, std::uint64_t* clipped);

// m = multiples times the unit, rotated back. Returns 1 if one is not finite, else 0.
int multiples_lower(float* m, const float* units, bool rotated, const Regions& regions);

}  // namespace gq
