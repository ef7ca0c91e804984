// Puts the floating-point guard and the threads around the kernels.
#include "gq/doors.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "gq/door.hpp"
#include "gq/grid.hpp"

namespace gq {
namespace {

// Where each thread put its entries of a shared list, and how many.
struct Slices {
  explicit Slices(int count) : count(count) {}

  std::size_t total() const {
    std::size_t sum = 0;
    for (int thread = 0; thread < count; ++thread) sum += size[thread];
    return sum;
  }

  // Where the room of a thread ends.
  std::size_t end(int thread, std::size_t capacity) const { return thread + 1 < count ? begin[thread + 1] : capacity; }

  bool fit(std::size_t capacity) const {
    for (int thread = 0; thread < count; ++thread)
      if (size[thread] > end(thread, capacity) - begin[thread]) return false;
    return true;
  }

  // Gives every thread exactly the room that its entries need.
  void line_up() {
    begin[0] = 0;
    for (int thread = 1; thread < count; ++thread) begin[thread] = begin[thread - 1] + size[thread - 1];
  }

  // Closes the gaps between the slices; returns the number of entries.
  std::size_t join(std::uint32_t* index, float* value) const {
    std::size_t end = size[0];
    for (int thread = 1; thread < count; ++thread) {
      if (begin[thread] != end && size[thread] > 0) {
        std::memmove(index + end, index + begin[thread], size[thread] * sizeof(std::uint32_t));
        std::memmove(value + end, value + begin[thread], size[thread] * sizeof(float));
      }
      end += size[thread];
    }
    return end;
  }

  int count;
  std::size_t begin[kMostThreads], size[kMostThreads];
};

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
  return by_elements(n,
                     [&](std::size_t begin, std::size_t count) { return kernels().scale(y + begin, factor, count); });
}

void add(const std::uint8_t* wire, float* y, std::size_t n) {
  by_elements(n, [&](std::size_t begin, std::size_t count) {
    kernels().add(wire + begin * sizeof(float), y + begin, count);
    return 0;
  });
}

int all_finite(const float* x, std::size_t n) {
  return !by_elements(n, [&](std::size_t begin, std::size_t count) { return !kernels().all_finite(x + begin, count); });
}

std::size_t onebit_nbytes(const Grid& grid, std::size_t n) { return kernels().onebit_nbytes(grid, n); }

int onebit_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, const Grid& grid) {
  return by_units(grid, n, [&](const UnitPiece& piece) {
    std::uint8_t* target = wire + onebit_nbytes(grid, piece.begin);
    return kernels().onebit_encode(x + piece.begin, shifted(e, piece.begin), shifted(r, piece.begin), target,
                                   piece.size(), piece.grid);
  });
}

int onebit_decode(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid, float scale) {
  return by_units(grid, n, [&](const UnitPiece& piece) {
    const std::uint8_t* source = wire + onebit_nbytes(grid, piece.begin);
    return kernels().onebit_decode(source, y + piece.begin, piece.size(), piece.grid, scale);
  });
}

int onebit_decode_add(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid) {
  return by_units(grid, n, [&](const UnitPiece& piece) {
    const std::uint8_t* source = wire + onebit_nbytes(grid, piece.begin);
    return kernels().onebit_decode_add(source, y + piece.begin, piece.size(), piece.grid);
  });
}

std::size_t collect(const float* x, const float* e, float* r, std::size_t n, std::uint32_t floor_bits,
                    std::uint32_t* index, float* value, std::size_t capacity, bool streaming) {
  const int count = threads_for(n);
  Slices slices(count);
  for (int thread = 0; thread < count; ++thread) slices.begin[thread] = capacity * thread / count;
  const auto collect_pieces = [&] {
    on_threads(count, [&](int thread) {
      const Piece piece = piece_of(n, thread, count);
      const std::size_t begin = slices.begin[thread];
      slices.size[thread] =
          kernels().collect(x + piece.begin, shifted(e, piece.begin), shifted(r, piece.begin), piece.size(), floor_bits,
                            static_cast<std::uint32_t>(piece.begin), index + begin, value + begin,
                            slices.end(thread, capacity) - begin, streaming);
      return 0;
    });
  };
  collect_pieces();
  if (!slices.fit(capacity)) {  // unevenly spread: there may be room for all of them, but not in equal slices
    if (slices.total() > capacity) return slices.total();
    slices.line_up();
    collect_pieces();
  }
  return slices.join(index, value);
}

void histogram(const float* x, const float* e, std::size_t n, std::int64_t* counts) {
  constexpr std::size_t kBins = 4096;
  std::mutex adding;
  by_elements(n, [&](std::size_t begin, std::size_t count) {
    std::int64_t local[kBins] = {};
    kernels().histogram(x + begin, shifted(e, begin), count, local);
    const std::lock_guard<std::mutex> lock(adding);
    for (std::size_t bin = 0; bin < kBins; ++bin) counts[bin] += local[bin];
    return 0;
  });
}

std::uint32_t kth(const float* value, std::size_t n, std::size_t k, int sign, std::size_t* above) {
  return kernels().kth(value, n, k, sign, above);
}

std::size_t keep(std::uint32_t* index, float* value, std::size_t n, std::uint32_t positive_bits,
                 std::uint32_t negative_bits, std::int64_t* ties, bool joint) {
  return kernels().keep(index, value, n, positive_bits, negative_bits, ties, joint);
}

void count_signs(const float* v, std::size_t n, std::size_t* positives, std::size_t* negatives) {
  kernels().count_signs(v, n, positives, negatives);
}

std::size_t select_bound(const Grid& grid, std::size_t n, std::size_t pi) {
  return kernels().select_bound(grid, n, pi);
}

std::int64_t select_columns(const float* x, const float* e, float* r, std::size_t n, const Grid& grid, std::size_t pi,
                            bool separate, std::uint32_t* index, float* value) {
  const int count = threads_for(n);
  Slices slices(count);
  const int bad = on_threads(count, [&](int thread) {
    const UnitPiece piece = piece_of_units(grid, n, thread, count);
    const std::size_t begin = select_bound(grid, piece.begin, pi);
    const std::int64_t selected = kernels().select_columns(
        x + piece.begin, shifted(e, piece.begin), shifted(r, piece.begin), piece.size(), piece.grid, pi, separate,
        static_cast<std::uint32_t>(piece.begin), index + begin, value + begin);
    slices.begin[thread] = begin;
    slices.size[thread] = selected < 0 ? 0 : static_cast<std::size_t>(selected);
    return static_cast<int>(selected < 0);
  });
  return bad ? -1 : static_cast<std::int64_t>(slices.join(index, value));
}

std::int64_t adaptive_encode(const std::uint32_t* index, const float* value, std::size_t count, float* r,
                             std::uint8_t* wire, std::size_t n, const Grid& grid) {
  const FloatGuard guard;
  return kernels().adaptive_encode(index, value, count, r, wire, n, grid);
}

std::int64_t adaptive_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n, const Grid& grid,
                             float scale, bool streaming) {
  const std::size_t columns = unit_count(grid, n);
  const std::int64_t used = kernels().adaptive_nbytes(wire, nbytes, columns);
  if (used < 0) return -1;
  const int bad = by_units(grid, n, [&](const UnitPiece& piece) {
    return kernels().adaptive_decode(wire, columns, piece.first, y + piece.begin, piece.size(), piece.grid, scale,
                                     streaming);
  });
  return bad ? -1 : used;
}

std::int64_t adaptive_decode_add(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n,
                                 const Grid& grid) {
  const std::size_t columns = unit_count(grid, n);
  const std::int64_t used = kernels().adaptive_nbytes(wire, nbytes, columns);
  if (used < 0) return -1;
  const int bad = by_units(grid, n, [&](const UnitPiece& piece) {
    return kernels().adaptive_decode_add(wire, columns, piece.first, y + piece.begin, piece.size(), piece.grid);
  });
  return bad ? -1 : used;
}

}  // namespace gq
