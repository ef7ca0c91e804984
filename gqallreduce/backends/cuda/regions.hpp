// The regions of a span (layout.py): each has a message of its own, one launch works on all of them.
#pragma once
#include "units.hpp"

namespace gq {
namespace device {

// Where a region begins in the span, and the number of its first unit; units are numbered through, and one that is cut
// at a region's end counts in each. A last row holds the span's size and units.
struct RegionRow {
  std::uint64_t start, first;
};

// The region of a unit; regions without units are passed over.
static inline std::size_t region_of(const RegionRow* regions, std::size_t count, std::size_t unit) {
  std::size_t low = 0, high = count;  // the first unit of `low` is not after this one, that of `high` is
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (regions[middle].first <= unit ? low : high) = middle;
  }
  return low;
}

// A unit of a span; begin and end are relative to the span. It is number `inside` of its region's `siblings`.
struct SpanUnit {
  std::size_t number, region = 0, inside = 0, siblings = 0, begin = 0, end = 0;
  bool exists;

  SpanUnit(Grid grid, const RegionRow* regions, std::size_t count, std::size_t unit)
      : number(unit), exists(unit < regions[count].first) {
    if (!exists) return;
    region = region_of(regions, count, unit);
    const RegionRow here = regions[region], next = regions[region + 1];
    inside = unit - here.first;
    siblings = next.first - here.first;
    grid.start += here.start;
    const GridUnit found(grid, next.start - here.start, inside);
    begin = here.start + found.begin;
    end = here.start + found.end;
  }

  std::size_t height() const { return end - begin; }
};

}  // namespace device
}  // namespace gq
