// What every wrapper puts around a kernel: one floating-point environment, and the threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>

#include "gq/float_control.hpp"
#include "gq/grid.hpp"

namespace gq {

// Sets the usual control word while it lives, whatever the caller had set, and then the caller's again; flags of what
// has happened stay. The word belongs to a thread, so every thread of a shared call takes a guard of its own.
class FloatGuard {
 public:
  FloatGuard() : saved_(float_control()) {
    if (!is_usual(saved_)) set_float_control(kUsualControl);
  }
  ~FloatGuard() {
    if (!is_usual(saved_)) set_float_control(saved_);
  }
  FloatGuard(const FloatGuard&) = delete;
  FloatGuard& operator=(const FloatGuard&) = delete;

 private:
  unsigned int saved_;
};

int threads();            // how many threads one call may use
void set_threads(int n);  // less than 1 means 1

// call(context, 0) ... call(context, count - 1), on several threads unless they are busy with another call.
void run_on_threads(int count, void (*call)(void*, int), void* context);

constexpr int kOutOfMemory = 2;  // what work on threads returns; 1 is for values and messages

constexpr std::size_t kLeastPerThread = 16384;  // elements; below, waking a thread costs more than it saves
constexpr std::size_t kMostThreads = 256;

inline int threads_for(std::size_t n) {
  const std::size_t useful = std::min(kMostThreads, std::max<std::size_t>(n / kLeastPerThread, 1));
  return static_cast<int>(std::min<std::size_t>(threads(), useful));
}

// Calls work(thread) for every thread number below `count`; returns the OR of the results.
template <class Work>
int on_threads(int count, Work work) {
  if (count == 1) {
    const FloatGuard guard;
    return work(0);
  }
  struct Shared {
    Work& work;
    std::atomic<int> result;
  } shared{work, {0}};
  const auto call = [](void* context, int thread) {
    const FloatGuard guard;
    Shared& shared = *static_cast<Shared*>(context);
    shared.result |= shared.work(thread);
  };
  run_on_threads(count, call, &shared);
  return shared.result;
}

// The contiguous piece [begin, end) of n elements that one of `count` threads works on.
struct Piece {
  std::size_t begin, end;
  std::size_t size() const { return end - begin; }
};

inline Piece piece_of(std::size_t n, int thread, int count) {
  const std::size_t step = (n / count + 63) / 64 * 64;  // whole cache lines
  return {std::min(n, step * thread), thread + 1 == count ? n : std::min(n, step * (thread + 1))};
}

// A piece that consists of whole units, `first` being the number of its first one.
struct UnitPiece : Piece {
  std::size_t first;
  Grid grid;
};

inline UnitPiece piece_of_units(const Grid& grid, std::size_t n, int thread, int count) {
  const std::size_t units = unit_count(grid, n), first = units * thread / count;
  const std::size_t begin = unit_begin(grid, n, first), end = unit_begin(grid, n, units * (thread + 1) / count);
  return {{begin, end}, first, {grid.start + begin, grid.run, grid.parts}};
}

// Calls work(begin, size) for the piece of each thread.
template <class Work>
int by_elements(std::size_t n, Work work) {
  const int count = threads_for(n);
  return on_threads(count, [&](int thread) {
    const Piece piece = piece_of(n, thread, count);
    return work(piece.begin, piece.size());
  });
}

// Calls work(piece) for the whole units of each thread.
template <class Work>
int by_units(const Grid& grid, std::size_t n, Work work) {
  const int count = threads_for(n);
  return on_threads(count, [&](int thread) {
    if (count == 1) return work(UnitPiece{{0, n}, 0, grid});
    return work(piece_of_units(grid, n, thread, count));
  });
}

template <class Number>
Number* shifted(Number* pointer, std::size_t by) {
  return pointer ? pointer + by : nullptr;
}

}  // namespace gq
