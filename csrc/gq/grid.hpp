// The units (columns, buckets) of a region of the flattened vector.
//
// Unit k of the whole vector begins at floor(k * run / parts): because every run holds exactly `parts` units this one
// formula gives the boundaries of all runs. A region of n elements from grid.start cuts its first and last unit off.
#pragma once
#include "gq/kernels.hpp"
#include "gq/standard.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

#ifdef __CUDACC__
// A GPU's memory holds fewer than 2^38 values and parts have more than 2^14, so that no product needs more bits;
// divisions of 128 bits would cost a kernel half its threads.
using wide_uint = std::uint64_t;

inline std::uint64_t quotient(wide_uint a, std::uint64_t b) { return b == 1 ? a : a / b; }
#else
using wide_uint = unsigned __int128;

// a / b, which fits; 128 bits are divided only where it must be.
inline std::uint64_t quotient(wide_uint a, std::uint64_t b) {
  if (b == 1) return static_cast<std::uint64_t>(a);
  return static_cast<std::uint64_t>(a >> 64 == 0 ? static_cast<std::uint64_t>(a) / b : a / b);
}
#endif

// The unit of the whole vector that holds the element with global index i.
inline std::uint64_t unit_of(const Grid& grid, std::uint64_t i) {
  if (i < grid.run && grid.parts == 1) return 0;
  return quotient((wide_uint(i) + 1) * grid.parts - 1, grid.run);
}

// The number of units that touch the region of n elements.
inline std::size_t unit_count(const Grid& grid, std::size_t n) {
  return n == 0 ? 0 : unit_of(grid, grid.start + n - 1) - unit_of(grid, grid.start) + 1;
}

// Where the region's unit number `unit` begins, relative to the region; n for unit >= the count.
inline std::size_t unit_begin(const Grid& grid, std::size_t n, std::size_t unit) {
  if (unit == 0 || n == 0) return 0;
  const wide_uint whole = wide_uint(unit_of(grid, grid.start)) + unit;
  const std::uint64_t begin = quotient(whole * grid.run, grid.parts) - grid.start;
  return begin < n ? begin : n;
}

// What the region's first `units` units take together if one of height h takes cost(h): all between the first and the
// last are whole, and of at most two heights.
template <class Cost>
inline std::size_t total_of(const Grid& grid, std::size_t n, std::size_t units, Cost cost) {
  if (units == 0) return 0;
  const std::size_t first_end = unit_begin(grid, n, 1);
  if (units == 1) return cost(first_end);
  const std::size_t last_begin = unit_begin(grid, n, units - 1), last_end = unit_begin(grid, n, units);
  const std::size_t height = grid.run / grid.parts, whole = units - 2;
  const std::size_t longer = last_begin - first_end - whole * height;  // by one
  return cost(first_end) + (whole - longer) * cost(height) + longer * cost(height + 1) + cost(last_end - last_begin);
}

// for (Units unit(grid, n); unit.inside(); unit.advance()) ... [unit.begin, unit.end), relative to the region.
class Units {
 public:
  std::size_t begin = 0;
  std::size_t end = 0;

  Units(const Grid& grid, std::size_t n) : n_(n), parts_(grid.parts), height_(grid.run) {
    if (parts_ != 1) height_ = grid.run / parts_, extra_ = grid.run % parts_;
    if (n == 0) return;
    const wide_uint first_end = (wide_uint(unit_of(grid, grid.start)) + 1) * grid.run;
    const std::uint64_t whole = quotient(first_end, parts_);
    remainder_ = static_cast<std::uint64_t>(first_end - wide_uint(whole) * parts_);
    end = clip(whole - grid.start);
  }

  bool inside() const { return begin < n_; }
  std::size_t height() const { return end - begin; }

  void advance() {
    begin = end;
    remainder_ += extra_;  // floor((k + 1) * run / parts) step by step, without a division
    const bool longer = remainder_ >= parts_;
    remainder_ -= longer ? parts_ : 0;
    end = begin + clip(height_ + longer);
  }

 private:
  std::uint64_t clip(std::uint64_t height) const { return height < n_ - begin ? height : n_ - begin; }

  std::size_t n_;
  std::uint64_t parts_, height_, extra_ = 0, remainder_ = 0;
};

}  // namespace
}  // namespace gq
