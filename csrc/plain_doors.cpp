#include "gq/plain_doors.hpp"

#include "gq/door.hpp"
#include "gq/kernels.hpp"

namespace gq {

namespace {

std::size_t itemsize(int format) { return format == 3 ? 4 : 2; }

}  // namespace

int plain_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, int format) {
  return by_elements(n, [&](std::size_t begin, std::size_t size) {
    return kernels().plain_encode(x + begin, shifted(e, begin), shifted(r, begin), wire + begin * itemsize(format),
                                  size, format);
  });
}

int plain_decode(const std::uint8_t* wire, float* y, std::size_t n, int format, float scale, bool add, bool streaming) {
  return by_elements(n, [&](std::size_t begin, std::size_t size) {
    return kernels().plain_decode(wire + begin * itemsize(format), y + begin, size, format, scale, add, streaming);
  });
}

}  // namespace gq
