// Puts the floating-point guard and the threads around the kernels.
#include "gq/doors.hpp"

#include <algorithm>

#include "gq/door.hpp"
#include "gq/grid.hpp"

namespace gq {
namespace {

constexpr std::size_t kLeastPerThread = 16384;  // elements; below, starting a thread costs more than it saves

int threads_for(std::size_t n) {
  return static_cast<int>(std::min<std::size_t>(threads(), std::max<std::size_t>(n / kLeastPerThread, 1)));
}

// Calls work(thread) for every thread number below `count`; returns the OR of the results.
template <class Work>
int on_threads(int count, Work work) {
  int result = 0;
#pragma omp parallel for num_threads(count) schedule(static) if (count > 1) reduction(| : result)
  for (int thread = 0; thread < count; ++thread) {
    const FloatGuard guard;
    result |= work(thread);
  }
  return result;
}

// Calls work(begin, count) for contiguous pieces of n elements.
template <class Work>
int by_elements(std::size_t n, Work work) {
  const int count = threads_for(n);
  const std::size_t piece = (n / count + 63) / 64 * 64;  // whole cache lines
  return on_threads(count, [&](int thread) {
    const std::size_t begin = std::min(n, piece * thread);
    const std::size_t end = thread + 1 == count ? n : std::min(n, begin + piece);
    return begin < end ? work(begin, end - begin) : 0;
  });
}

// Calls work(begin, count, grid of the piece) for contiguous pieces that consist of whole units.
template <class Work>
int by_units(const Grid& grid, std::size_t n, Work work) {
  const int count = threads_for(n);
  const std::size_t units = unit_count(grid, n);
  return on_threads(count, [&](int thread) {
    const std::size_t begin = unit_begin(grid, n, units * thread / count);
    const std::size_t end = unit_begin(grid, n, units * (thread + 1) / count);
    return begin < end ? work(begin, end - begin, Grid{grid.start + begin, grid.run, grid.parts}) : 0;
  });
}

template <class Number>
Number* shifted(Number* pointer, std::size_t by) {
  return pointer ? pointer + by : nullptr;
}

std::size_t nbytes_of(int format) { return format == 2 ? 8 : 2; }

}  // namespace

int widen(const std::uint8_t* source, float* y, std::size_t n, int format) {
  return by_elements(n, [&](std::size_t begin, std::size_t count) {
    return kernels().widen(source + begin * nbytes_of(format), y + begin, count, format);
  });
}

int narrow(const float* x, std::uint8_t* target, std::size_t n, int format) {
  return by_elements(n, [&](std::size_t begin, std::size_t count) {
    return kernels().narrow(x + begin, target + begin * nbytes_of(format), count, format);
  });
}

int add_finite(const float* x, const float* e, std::uint8_t* y, std::size_t n) {
  return by_elements(n, [&](std::size_t begin, std::size_t count) {
    return kernels().add_finite(x + begin, shifted(e, begin), y + begin * sizeof(float), count);
  });
}

int scale(float* y, float factor, std::size_t n) {
  return by_elements(
      n, [&](std::size_t begin, std::size_t count) { return kernels().scale(y + begin, factor, count); });
}

void add(const std::uint8_t* wire, float* y, std::size_t n) {
  by_elements(n, [&](std::size_t begin, std::size_t count) {
    kernels().add(wire + begin * sizeof(float), y + begin, count);
    return 0;
  });
}

int all_finite(const float* x, std::size_t n) {
  return !by_elements(
      n, [&](std::size_t begin, std::size_t count) { return !kernels().all_finite(x + begin, count); });
}

std::size_t onebit_nbytes(const Grid& grid, std::size_t n) { return kernels().onebit_nbytes(grid, n); }

int onebit_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, const Grid& grid) {
  return by_units(grid, n, [&](std::size_t begin, std::size_t count, const Grid& piece) {
    std::uint8_t* target = wire + onebit_nbytes(grid, begin);
    return kernels().onebit_encode(x + begin, shifted(e, begin), shifted(r, begin), target, count, piece);
  });
}

int onebit_decode(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid, float scale) {
  return by_units(grid, n, [&](std::size_t begin, std::size_t count, const Grid& piece) {
    return kernels().onebit_decode(wire + onebit_nbytes(grid, begin), y + begin, count, piece, scale);
  });
}

int onebit_decode_add(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid) {
  return by_units(grid, n, [&](std::size_t begin, std::size_t count, const Grid& piece) {
    return kernels().onebit_decode_add(wire + onebit_nbytes(grid, begin), y + begin, count, piece);
  });
}

}  // namespace gq
