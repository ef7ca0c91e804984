// A table of regions of flattened vectors. Their elements lie end to end in memory, and so do their messages.
#pragma once
#include "gq/kernels.hpp"

namespace gq {

// `size` elements from grid.start on, of the tensor number `segment` of a call.
struct Region {
  std::size_t size;
  Grid grid;
  std::uint64_t segment;
};

// Where the values of a region are, what is added to them (or null), and where the error goes (or null).
struct Vectors {
  const float* x;
  const float* e;
  float* r;
};

struct Regions {
  const Region* first;
  std::size_t count;

  const Region* begin() const { return first; }
  const Region* end() const { return first + count; }
};

// Calls work(region, place) for each region, `place` being where its elements begin; returns the OR of the results.
template <class Work>
int by_regions(const Regions& regions, Work work) {
  int result = 0;
  std::size_t place = 0;
  for (const Region& region : regions) {
    result |= work(region, place);
    place += region.size;
  }
  return result;
}

// Calls work(region, place, its message) for each region, their messages lying end to end from `wire` on; returns the
// OR of the results. How long the last one is is not asked: most tables have one region, and finding it out costs as
// much as a short message.
template <class Byte, class Nbytes, class Work>
int by_messages(const Regions& regions, Byte* wire, Nbytes nbytes_of, Work work) {
  int result = 0;
  std::size_t place = 0;
  for (const Region& region : regions) {
    result |= work(region, place, wire);
    if (&region + 1 == regions.end()) break;
    place += region.size;
    wire += nbytes_of(region);
  }
  return result;
}

// What cost(region) is of all regions.
template <class Cost>
std::size_t sum_over(const Regions& regions, Cost cost) {
  std::size_t sum = 0;
  for (const Region& region : regions) sum += cost(region);
  return sum;
}

inline std::size_t elements_of(const Regions& regions) {
  return sum_over(regions, [](const Region& region) { return region.size; });
}

}  // namespace gq
