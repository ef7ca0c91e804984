// A table of regions of flattened vectors. Their elements lie end to end in memory, and so do their messages.
#pragma once
#include <type_traits>

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

// Fetches the first values of a region that comes soon. Where short regions lie apart the CPU does not foresee the next
// one, and the work on each would begin by waiting for memory.
template <class Value>
void fetch_values(Value* values, std::size_t size) {
  asm volatile("");  // GCC drops calls of what does nothing but fetch
  constexpr std::size_t kLine = 64 / sizeof(float), kMost = 8 * kLine;  // the CPU foresees the lines behind these
  for (std::size_t i = 0; values && i < size && i < kMost; i += kLine)
    __builtin_prefetch(values + i, /*to be written=*/!std::is_const<Value>::value);
}

constexpr std::size_t kRegionsAhead = 4;  // whose values are on their way from memory

// `vectors` are those of `region`, which is one of `regions`.
inline void fetch_ahead(const Vectors* vectors, const Region& region, const Regions& regions) {
  const std::size_t behind = static_cast<std::size_t>(regions.end() - &region);
  if (behind <= kRegionsAhead) return;
  const std::size_t size = (&region)[kRegionsAhead].size;
  fetch_values(vectors[kRegionsAhead].x, size);
  fetch_values(vectors[kRegionsAhead].e, size);
  if (vectors[kRegionsAhead].r != vectors[kRegionsAhead].e) fetch_values(vectors[kRegionsAhead].r, size);
}

inline void fetch_ahead(float* const* y, const Region& region, const Regions& regions) {
  const std::size_t behind = static_cast<std::size_t>(regions.end() - &region);
  if (behind > kRegionsAhead) fetch_values(y[kRegionsAhead], (&region)[kRegionsAhead].size);
}

inline std::size_t elements_of(const Regions& regions) {
  return sum_over(regions, [](const Region& region) { return region.size; });
}

}  // namespace gq
