// Vectors worked on some whole units at a time, few enough to stay in the first cache.
#pragma once
#include "gq/grid.hpp"

namespace gq {

constexpr std::size_t kStripValues = 4096;  // at most, of several units; a longer unit is a strip by itself

inline std::size_t units_in_strip(const Grid& grid) {
  return grid.run < kStripValues ? static_cast<std::size_t>(kStripValues / grid.run) : 1;
}

// The most values of a strip of n values.
inline std::size_t strip_values(const Grid& grid, std::size_t n) {
  const std::uint64_t most = grid.run * units_in_strip(grid);
  return most < n ? static_cast<std::size_t>(most) : n;
}

// work(begin, size, grid) for one strip after the other, until it returns something else than 0.
template <class Work>
int by_strips(std::size_t n, const Grid& grid, Work work) {
  const std::size_t units = unit_count(grid, n), step = units_in_strip(grid);
  for (std::size_t unit = 0; unit < units; unit += step) {
    const std::size_t begin = unit_begin(grid, n, unit), end = unit_begin(grid, n, unit + step);
    if (const int bad = work(begin, end - begin, Grid{grid.start + begin, grid.run, grid.parts})) return bad;
  }
  return 0;
}

}  // namespace gq
