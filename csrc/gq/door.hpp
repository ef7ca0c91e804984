// What every wrapper puts around a kernel: one floating-point environment, and the threads.
#pragma once
#include <xmmintrin.h>

#include <atomic>
#include <cstddef>

#include "gq/grid.hpp"

namespace gq {

// Rounds to nearest, keeps denormals and masks exceptions while it lives, whatever the caller had set. The control
// word belongs to a thread, so every part of a shared call takes a guard of its own.
class FloatGuard {
 public:
  FloatGuard() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~FloatGuard() { _mm_setcsr(saved_); }
  FloatGuard(const FloatGuard&) = delete;
  FloatGuard& operator=(const FloatGuard&) = delete;

 private:
  unsigned int saved_;
};

int threads();            // how many threads one call may use
void set_threads(int n);  // less than 1 means 1

// call(context, 0) ... call(context, parts - 1), on several threads if none is busy with another call.
void run_parts(int parts, void (*call)(void*, int), void* context);

constexpr std::size_t kWorthThreads = 1 << 15;  // elements; below, waking threads costs more than they save

// Calls part(begin, end) for contiguous parts of [0, count), one per thread; 1 if any gives 1. `n` elements of work.
template <class Part>
int for_parts(std::size_t count, std::size_t n, Part part) {
  struct Shared {
    Part& part;
    std::size_t count;
    int parts;
    std::atomic<int> failed;
  };
  const int parts = n < kWorthThreads || count < 2 ? 1 : threads();
  Shared shared{part, count, parts, {0}};
  run_parts(
      parts,
      [](void* context, int number) {
        const FloatGuard guard;
        Shared& shared = *static_cast<Shared*>(context);
        const std::size_t begin = shared.count * number / shared.parts;
        const std::size_t end = shared.count * (number + 1) / shared.parts;
        if (begin < end && shared.part(begin, end)) shared.failed = 1;
      },
      &shared);
  return shared.failed;
}

// The same for whole units of a region of n elements: part(begin, end) in elements.
template <class Part>
int for_units(const Grid& grid, std::size_t n, Part part) {
  return for_parts(unit_count(grid, n), n, [&](std::size_t first, std::size_t last) {
    return part(unit_begin(grid, n, first), unit_begin(grid, n, last));
  });
}

}  // namespace gq
