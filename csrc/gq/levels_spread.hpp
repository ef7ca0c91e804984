// A histogram of v / norm, to which levels are fitted; each value of a bucket counts with norm^power.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/grid.hpp"
#include "gq/kernels.hpp"
#include "gq/levels.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// The bin of v / norm, from the exponent and the first four bits of the mantissa: 16 bins per power of two down to
// 2^-24, one for what is below, alike for both signs; bins ascend with v.
static inline std::uint32_t spread_bin(float v, float norm) {
  const std::uint32_t ratio = bits_of(float_of(magnitude(v)) / norm) >> 19;
  const std::uint32_t first = (127 - 24) * 16 - 1, last = 127 * 16 - 1;
  const std::uint32_t capped = ratio < last ? ratio : last;
  const std::uint32_t bin = (capped > first ? capped : first) - first;
  return bits_of(v) >> 31 ? kSpreadBins / 2 - 1 - bin : kSpreadBins / 2 + bin;
}

// weight[bin] += norm^power for every value v = x + e; buckets whose norm is zero or not finite are left out.
static void levels_spread(const float* x, const float* e, std::size_t n, bool l2, int power, const Grid& grid,
                          double* weight) {
  std::uint32_t bin[kTile];
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    const float norm = bucket_norm(x + unit.begin, e ? e + unit.begin : nullptr, unit.height(), l2);
    if (!is_norm(norm) || norm == 0) continue;
    const double by_power[3] = {1.0, norm, double(norm) * norm};
    for (std::size_t begin = unit.begin; begin < unit.end; begin += kTile) {
      const std::size_t height = unit.end - begin < kTile ? unit.end - begin : kTile;
      for (std::size_t i = 0; i < height; ++i)
        bin[i] = spread_bin(e ? x[begin + i] + e[begin + i] : x[begin + i], norm);
      for (std::size_t i = 0; i < height; ++i) weight[bin[i]] += by_power[power];
    }
  }
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
