// Plain numbers on the wire: float16, bfloat16 (formats 0 and 1 of cast.hpp) or float32 (3), little-endian.
#pragma once
#include "gq/cast.hpp"
#include "gq/sink.hpp"

namespace gq {
namespace GQ_NAMESPACE {

struct Float32 {
  using Number = float;
};

static std::size_t plain_itemsize(int format) { return format == kFloat32 ? 4 : 2; }

#if GQ_LEVEL >= 1
static inline bool reaches_infinity(Ints largest) {
  bool reaches = false;
  for (std::size_t lane = 0; lane < kWidth; ++lane) reaches |= largest[lane] >= std::int32_t(kInfinity);
  return reaches;
}

// What v is rounded to; the same numbers as Float16 and Bfloat16 of cast.hpp. A NaN need not stay one.
template <class Format>
static inline Floats rounded(Floats v, std::uint8_t* wire);

template <>
inline Floats rounded<Float16>(Floats v, std::uint8_t* wire) {
#if GQ_LEVEL == 2
  const __m256i halves = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  store(wire, halves);
  return (Floats)_mm512_cvtph_ps(halves);
#else
  const __m128i halves = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  store(wire, halves);
  return (Floats)_mm256_cvtph_ps(halves);
#endif
}

template <>
inline Floats rounded<Bfloat16>(Floats v, std::uint8_t* wire) {
  typedef std::uint32_t Words __attribute__((vector_size(4 * kWidth)));
  typedef std::uint16_t Halves __attribute__((vector_size(2 * kWidth)));
  const Words bits = (Words)v, nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  store(wire, __builtin_convertvector(nearest, Halves));
  return (Floats)(nearest << 16);
}

// Whole vectors of narrow_encode; sets `bad` if a value cannot be sent. Returns the elements done.
template <class Format>
static std::size_t narrow_vectors(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                                  int& bad) {
  Ints largest = {};
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Floats given = load<Floats>(x + i), v = e ? given + load<Floats>(e + i) : given;
    const Floats sent = rounded<Format>(v, wire + 2 * i);
    if (r) store(r + i, v - sent);
    const Ints magnitudes[] = {(Ints)v & 0x7fffffff, (Ints)sent & 0x7fffffff};
    for (const Ints magnitude : magnitudes) largest = magnitude > largest ? magnitude : largest;
  }
  bad |= reaches_infinity(largest);
  return i;
}
#else
template <class Format>
static std::size_t narrow_vectors(const float*, const float*, float*, std::uint8_t*, std::size_t, int&) {
  return 0;
}
#endif

template <class Format>
static int narrow_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n) {
  int bad = 0;
  for (std::size_t i = narrow_vectors<Format>(x, e, r, wire, n, bad); i < n; ++i) {
    const float v = e ? x[i] + e[i] : x[i];
    const typename Format::Number sent = Format::narrow(v);
    store(wire + 2 * i, sent);
    if (r) r[i] = v - Format::widen(sent);
    bad |= !Format::finite(sent);
  }
  return bad;
}

// wire = x + e rounded to the format; r, if given, what the rounding lost. 1 if a sent value is not finite.
static int plain_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, int format) {
  if (format == kFloat32) {
    if (r) std::memset(r, 0, n * sizeof(float));
    return add_finite(x, e, wire, n);
  }
  return format == 0 ? narrow_encode<Float16>(x, e, r, wire, n) : narrow_encode<Bfloat16>(x, e, r, wire, n);
}

#if GQ_LEVEL >= 1
// The next kWidth numbers at `wire`, as float32.
template <class Format>
static inline Floats widened(const std::uint8_t* wire);

template <>
inline Floats widened<Bfloat16>(const std::uint8_t* wire) {
  typedef std::uint16_t Halves __attribute__((vector_size(2 * kWidth)));
  typedef std::uint32_t Words __attribute__((vector_size(4 * kWidth)));
  return (Floats)(__builtin_convertvector(load<Halves>(wire), Words) << 16);
}

template <>
inline Floats widened<Float16>(const std::uint8_t* wire) {
#if GQ_LEVEL == 2
  return (Floats)_mm512_cvtph_ps(load<__m256i>(wire));
#else
  return (Floats)_mm256_cvtph_ps(load<__m128i>(wire));
#endif
}

template <>
inline Floats widened<Float32>(const std::uint8_t* wire) {
  return load<Floats>(wire);
}

// y = scale * wire for n values, whole lines of y. Each is streamed as soon as it is read: to read a whole block before
// it is stored takes longer. 1 if a received value is not finite.
template <class Format>
static int stream_lines(const std::uint8_t* wire, float* y, std::size_t n, float scale) {
  Ints largest = {};
  for (std::size_t i = 0; i < n; i += kWidth) {
    const Floats v = widened<Format>(wire + i * sizeof(typename Format::Number));
    const Ints magnitude = (Ints)v & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
    stream(y + i, v * scale);
  }
  return reaches_infinity(largest);
}
#else
// Not called: `can_stream` is false at this level.
template <class Format>
static int stream_lines(const std::uint8_t*, float*, std::size_t, float) {
  return 0;
}
#endif

// As plain_decode, with ordinary stores.
static int decode_blocks(const std::uint8_t* wire, float* y, std::size_t n, int format, float scale, bool add) {
  constexpr std::size_t kBlock = 512;
  float v[kBlock];
  int bad = 0;
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const std::size_t count = n - begin < kBlock ? n - begin : kBlock;
    const std::uint8_t* from = wire + begin * plain_itemsize(format);
    float* const to = y + begin;
    if (format == kFloat32) {
      std::memcpy(v, from, count * sizeof(float));
      bad |= !all_finite(v, count);
    } else {
      bad |= widen(from, v, count, format);
    }
    if (add)
      for (std::size_t i = 0; i < count; ++i) to[i] += v[i];
    else
      for (std::size_t i = 0; i < count; ++i) to[i] = v[i] * scale;
  }
  return bad;
}

// y = scale * wire, or y += wire. 1 if a received value is not finite.
static int plain_decode(const std::uint8_t* wire, float* y, std::size_t n, int format, float scale, bool add,
                        bool streaming) {
  const std::size_t before = floats_to_next_line(y);
  if (!streaming || add || !can_stream(y) || n < before) return decode_blocks(wire, y, n, format, scale, add);
  const std::size_t item = plain_itemsize(format), lines = (n - before) / kLine * kLine, end = before + lines;
  const auto stream_all_lines = format == kFloat32 ? stream_lines<Float32>
                                : format == 0      ? stream_lines<Float16>
                                                   : stream_lines<Bfloat16>;
  int bad = decode_blocks(wire, y, before, format, scale, false);
  bad |= stream_all_lines(wire + before * item, y + before, lines, scale);
  bad |= decode_blocks(wire + end * item, y + end, n - end, format, scale, false);
  finish_streaming();
  return bad;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
