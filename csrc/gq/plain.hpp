// Plain numbers on the wire: float16, bfloat16 (formats 0 and 1 of cast.hpp) or float32 (3), little-endian.
#pragma once
#include "gq/cast.hpp"
#include "gq/sink.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr int kFloat32 = 3;

static std::size_t plain_itemsize(int format) { return format == kFloat32 ? 4 : 2; }

// wire = x + e rounded to the format; r, if given, what the rounding lost. 1 if a sent value is not finite.
static int plain_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, int format) {
  if (format == kFloat32) {
    if (r) std::memset(r, 0, n * sizeof(float));
    return add_finite(x, e, wire, n);
  }
  float v[kCastBlock];
  int bad = 0;
  for (std::size_t begin = 0; begin < n; begin += kCastBlock) {
    const std::size_t count = n - begin < kCastBlock ? n - begin : kCastBlock;
    std::uint8_t* to = wire + begin * plain_itemsize(format);
    for (std::size_t i = 0; i < count; ++i) v[i] = e ? x[begin + i] + e[begin + i] : x[begin + i];
    bad |= narrow(v, to, count, format);
    if (!r) continue;
    widen(to, r + begin, count, format);
    for (std::size_t i = 0; i < count; ++i) r[begin + i] = v[i] - r[begin + i];
  }
  return bad;
}

// y = scale * wire, or y += wire. 1 if a received value is not finite.
static int plain_decode(const std::uint8_t* wire, float* y, std::size_t n, int format, float scale, bool add,
                        bool streaming) {
  Sink values(y, streaming && !add);
  float v[Sink::kBlock];
  int bad = 0;
  for (std::size_t begin = 0; begin < n; begin += Sink::kBlock) {
    const std::size_t count = n - begin < Sink::kBlock ? n - begin : Sink::kBlock;
    const std::uint8_t* from = wire + begin * plain_itemsize(format);
    if (format == kFloat32) {
      std::memcpy(v, from, count * sizeof(float));
      bad |= !all_finite(v, count);
    } else {
      bad |= widen(from, v, count, format);
    }
    float* const to = values.at(begin, count);
    if (add)
      for (std::size_t i = 0; i < count; ++i) to[i] += v[i];
    else
      for (std::size_t i = 0; i < count; ++i) to[i] = v[i] * scale;
  }
  return bad;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
