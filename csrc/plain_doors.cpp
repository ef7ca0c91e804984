#include "gq/plain_doors.hpp"

#include "gq/door.hpp"
#include "gq/kernels.hpp"

namespace gq {

namespace {

constexpr std::size_t kWorthThreads = 1 << 15;  // elements; below, starting threads costs more than they save

// Calls part(begin, end) for contiguous parts of n elements, one per thread; 1 if any gives 1.
template <class Part>
int for_parts(std::size_t n, Part part) {
  const int parts = n < kWorthThreads ? 1 : threads();
  int failed = 0;
#pragma omp parallel for num_threads(parts) schedule(static) reduction(| : failed) if (parts > 1)
  for (int number = 0; number < parts; ++number) {
    const FloatGuard guard;
    failed |= part(n * number / parts, n * (number + 1) / parts);
  }
  return failed;
}

std::size_t itemsize(int format) { return format == 3 ? 4 : 2; }

const float* at(const float* array, std::size_t begin) { return array ? array + begin : nullptr; }
float* at(float* array, std::size_t begin) { return array ? array + begin : nullptr; }

}  // namespace

int plain_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, int format) {
  return for_parts(n, [&](std::size_t begin, std::size_t end) {
    return kernels().plain_encode(x + begin, at(e, begin), at(r, begin), wire + begin * itemsize(format), end - begin,
                                  format);
  });
}

int plain_decode(const std::uint8_t* wire, float* y, std::size_t n, int format, float scale, bool add) {
  return for_parts(n, [&](std::size_t begin, std::size_t end) {
    return kernels().plain_decode(wire + begin * itemsize(format), y + begin, end - begin, format, scale, add);
  });
}

}  // namespace gq
