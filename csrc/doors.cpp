// Puts the floating-point guard and the threads around the kernels.
#include "gq/doors.hpp"

#include <mutex>

#include "gq/door.hpp"
#include "gq/slices.hpp"

namespace gq {
namespace {

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
  if (!e && y == reinterpret_cast<const std::uint8_t*>(x)) return !all_finite(x, n);
  return by_elements(n, [&](std::size_t begin, std::size_t count) {
    return kernels().add_finite(x + begin, shifted(e, begin), y + begin * sizeof(float), count);
  });
}

int scale(float* y, float factor, std::size_t n) {
  if (factor == 1) return !all_finite(y, n);
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

}  // namespace gq
