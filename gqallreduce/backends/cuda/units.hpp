// Where a unit lies: what grid.hpp says, with fewer divisions where each run is one unit. Every thread asks for its
// own.
#pragma once
#include "gq/grid.hpp"

namespace gq {
namespace device {

// A region's unit; begin and end are relative to the region.
struct GridUnit {
  std::size_t number, begin = 0, end = 0;
  bool exists;

  GridUnit(const Grid& grid, std::size_t n, std::size_t number) : number(number) {
    if (grid.parts == 1) {
      const std::size_t first_end = grid.run - grid.start % grid.run;
      begin = number > 0 ? first_end + (number - 1) * grid.run : 0;
      end = first_end + number * grid.run;
      end = end < n ? end : n;
      exists = begin < n;
    } else {
      exists = number < unit_count(grid, n);
      if (!exists) return;
      begin = unit_begin(grid, n, number);
      end = unit_begin(grid, n, number + 1);
    }
  }

  std::size_t height() const { return end - begin; }

  // What the units before this one take together if one of height h takes cost(h).
  template <class Cost>
  std::size_t offset(const Grid& grid, std::size_t n, Cost cost) const {
    if (grid.parts != 1) return total_of(grid, n, number, cost);
    return number > 0 ? cost(begin - (number - 1) * grid.run) + (number - 1) * cost(grid.run) : 0;
  }
};

}  // namespace device
}  // namespace gq
