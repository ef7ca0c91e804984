// One-bit quantization (Seide 2014): per column the sign bit of each value, the mean of the values >= 0 and the mean of
// the values < 0. A column on the wire: float32 mean of {v >= 0}, float32 mean of {v < 0}, then one bit per value (1
// for v >= 0), lowest bit first, the last byte filled up with zeros.
#pragma once
#include "gq/grid.hpp"
#include "gq/standard.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr std::size_t kOnebitHeader = 2 * sizeof(float);

static inline std::size_t onebit_column_nbytes(std::size_t height) { return kOnebitHeader + (height + 7) / 8; }

// Bytes of the first `columns` columns of a region.
static inline std::size_t onebit_offset(const Grid& grid, std::size_t n, std::size_t columns) {
  return total_of(grid, n, columns, onebit_column_nbytes);
}

struct SignSums {
  double positive = 0.0, negative = 0.0;  // sums of {v >= 0} and {v < 0}
  std::size_t positive_count = 0;
};

struct SignMeans {
  float positive, negative;
};

static inline SignMeans means_of(const SignSums& sums, std::size_t height) {
  const std::size_t negative_count = height - sums.positive_count;
  return {sums.positive_count ? static_cast<float>(sums.positive / static_cast<double>(sums.positive_count)) : 0.0f,
          negative_count ? static_cast<float>(sums.negative / static_cast<double>(negative_count)) : 0.0f};
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
