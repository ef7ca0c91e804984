#include "gq/dither_doors.hpp"

#include "gq/door.hpp"

namespace gq {

void largest_of_rows(const float* x, std::size_t rows, std::size_t columns, float* largest) {
  const int count = threads_for(rows * columns);
  on_threads(count, [&](int thread) {
    const std::size_t begin = rows * thread / count, end = rows * (thread + 1) / count;
    kernels().largest_of_rows(x + begin * columns, end - begin, columns, largest + begin);
    return 0;
  });
}

void dither_encode(const float* x, std::size_t n, std::size_t columns, const float* step, const Dither& dither,
                   const Stream& stream, std::uint64_t begin, std::uint8_t* wire) {
  by_elements(n, [&](std::size_t first, std::size_t count) {  // pieces begin at multiples of 64
    kernels().dither_encode(x, first, count, columns, step, dither, stream, begin, wire);
    return 0;
  });
}

void dither_decode(const std::uint8_t* wire, std::size_t n, std::size_t columns, const float* step, const float* number,
                   int bits, bool shifts, int zero, const Stream& stream, std::uint64_t begin, float* y) {
  by_elements(n, [&](std::size_t first, std::size_t count) {
    kernels().dither_decode(wire, first, count, columns, step, number, bits, shifts, zero, stream, begin, y);
    return 0;
  });
}

}  // namespace gq
