// Linear codecs: a rank's own values become whole multiples of a unit, and sums travel as those integers, exactly.
//
// `lift` is the only step that makes an error. From then on a vector of integers is kept in float32, which is exact
// below 2^24, and written in tiles of 4096 values. A tile says in its first byte how: nothing (all are zero), dense
// (codes of the width that the largest needs), or sparse (the gaps between those that are not zero, and their codes),
// whichever is shorter.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/integers_tile.hpp"
#include "gq/kernels.hpp"
#include "gq/levels.hpp"
#include "gq/levels_round.hpp"
#include "gq/random.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// The bits of max |v|, and the sum of v * v by the sum rule; v = x + e, e may be null.
static void measure(const float* x, const float* e, std::size_t n, bool squares, std::uint32_t* largest, double* sum) {
  *largest = largest_magnitude(x, e, n);
  *sum = squares ? sum_of_squares(x, e, n) : 0.0;
}

// Is a magnitude sent? By threshold, or at random with probability magnitude / unit (to 2^-17).
static inline bool is_sent(float magnitude, const Lift& lift, std::uint16_t random) {
  if (!lift.ternary) return magnitude >= lift.unit;
  return lift.unit > 0 && rounds_up(magnitude / lift.unit, random);
}

#if GQ_LEVEL >= 1

// As many values as whole vectors take; returns how many. ORs the magnitudes' bits that are not finite into *bad.
static inline std::size_t lift_vectors(const float* x, const float* e, float* r, float* m, std::size_t n,
                                       const Lift& lift, const std::uint16_t* random, bool* bad) {
  const Floats unit = Floats{} + lift.unit;
  const bool silent = lift.ternary && !(lift.unit > 0);
  Ints any = {};
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    Floats v = load<Floats>(x + i);
    if (e) v += load<Floats>(e + i);
    const Ints bits = (Ints)v, magnitude_bits = bits & 0x7fffffff;
    const Floats magnitude = (Floats)magnitude_bits;
    Ints sent = {};
    if (!lift.ternary)
      sent = magnitude >= unit;
    else if (!silent)
      sent = to_floats(load_words(random + i)) + 0.5f < magnitude / unit * 65536.0f;
    const Ints sign = bits & std::int32_t(0x80000000);
    const Floats multiple = (Floats)((sign | 0x3f800000) & sent);
    const Ints infinite = magnitude_bits >= 0x7f800000;
    any |= infinite;
    if (r) store(r + i, v - multiple * unit);
    store(m + i, infinite ? v : multiple);
  }
  for (std::size_t lane = 0; lane < kWidth; ++lane) *bad |= any[lane] != 0;
  return i;
}

#endif

// At most kLongest values v = x + e: m = the multiples, or v where it is not finite; r = v - m * unit. m may be x.
static inline bool lift_values(const float* x, const float* e, float* r, float* m, std::size_t n, const Lift& lift,
                               const std::uint16_t* random) {
  bool bad = false;
  std::size_t i = 0;
#if GQ_LEVEL >= 1
  i = lift_vectors(x, e, r, m, n, lift, random, &bad);
#endif
  for (; i < n; ++i) {
    const float v = e ? x[i] + e[i] : x[i];
    const float magnitude = __builtin_fabsf(v);
    const bool finite = magnitude < __builtin_inff();
    const bool sent = is_sent(magnitude, lift, lift.ternary ? random[i] : 0);
    const float multiple = sent ? __builtin_copysignf(1.0f, v) : 0.0f;
    if (r) r[i] = v - multiple * lift.unit;
    m[i] = finite ? multiple : v;
    bad |= !finite;
  }
  return bad;
}

// `first` is the global index of the first value. Returns 1 if a value is not finite, else 0.
static int integers_lift(const float* x, const float* e, float* r, float* m, std::size_t n, const Lift& lift,
                         std::uint64_t first, const Stream& stream) {
  RandomWindow window(stream, first + n);
  bool bad = false;
  for (std::size_t done = 0; done < n;) {
    const std::size_t part = n - done < window.kLongest ? n - done : window.kLongest;
    const std::uint16_t* random = lift.ternary ? window.at(first + done, part) : nullptr;
    bad |= lift_values(x + done, e ? e + done : nullptr, r ? r + done : nullptr, m + done, part, lift, random);
    done += part;
  }
  return bad;
}

// The tiles of n own values; returns their bytes, or -1 if a value is not finite.
static std::int64_t integers_encode_own(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                                        const Lift& lift, std::uint64_t first, const Stream& stream) {
  alignas(64) float m[kTileValues];
  std::uint8_t* out = wire;
  int bad = 0;
  RandomWindow window(stream, first + n);
  for (std::size_t begin = 0; begin < n; begin += kTileValues) {
    const std::size_t height = n - begin < kTileValues ? n - begin : kTileValues;
    for (std::size_t done = 0; done < height;) {
      const std::size_t part = height - done < window.kLongest ? height - done : window.kLongest, at = begin + done;
      const std::uint16_t* random = lift.ternary ? window.at(first + at, part) : nullptr;
      bad |= lift_values(x + at, e ? e + at : nullptr, r ? r + at : nullptr, m + done, part, lift, random);
      done += part;
    }
    if (!bad) out += write_tile(m, height, 1, out);
  }
  return bad ? -1 : out - wire;
}

// The tiles of n integers; returns their bytes, -1 if one times the unit is not finite, -2 if one is above `terms`.
static std::int64_t integers_encode(const float* m, std::uint8_t* wire, std::size_t n, float unit,
                                    std::uint32_t terms) {
  std::uint8_t* out = wire;
  for (std::size_t begin = 0; begin < n; begin += kTileValues) {
    const std::size_t height = n - begin < kTileValues ? n - begin : kTileValues;
    const float largest = largest_of(m + begin, height);
    if (!(largest <= float(terms))) return -2;
    if (!(largest * unit < __builtin_inff())) return -1;
    out += write_tile(m + begin, height, static_cast<std::uint32_t>(largest), out);
  }
  return out - wire;
}

// y = m * unit * scale, or y += m * unit, of the tiles in exactly `nbytes`. 1 if they are malformed, else 0.
static int integers_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n, float unit,
                           float scale, bool add, std::uint32_t terms) {
  const Limits limits{terms, unit};
  for (std::size_t begin = 0; begin < n; begin += kTileValues) {
    const std::size_t height = n - begin < kTileValues ? n - begin : kTileValues;
    const std::size_t used = tile_bytes(wire, nbytes, height);
    if (used == 0 || !read_tile(wire, y + begin, height, limits, scale, add)) return 1;
    wire += used;
    nbytes -= used;
  }
  return nbytes != 0;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
