// Own values to integers, the only step of a linear codec that makes an error: by threshold, or ternary at random. The
// results are multiples in float32, or, where a message is made of them at once, a bit that is set where a value is
// sent and one that is set where it is negative.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/integers_sending.hpp"
#include "gq/integers_wire.hpp"
#include "gq/kernels.hpp"
#include "gq/random.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

#if GQ_LEVEL == 2
static inline std::uint64_t sign_bits(Ints v) { return _mm512_movepi32_mask((Register)v); }
static inline Ints maximum(Ints a, Ints b) { return (Ints)_mm512_max_epi32((Register)a, (Register)b); }
// One more in every lane where a > b.
static inline Ints count_above(Ints count, Ints a, Ints b) {
  const __mmask16 above = _mm512_cmpgt_epi32_mask((Register)a, (Register)b);
  return (Ints)_mm512_mask_sub_epi32((Register)count, above, (Register)count, _mm512_set1_epi32(-1));
}
#elif GQ_LEVEL == 1
static inline std::uint64_t sign_bits(Ints v) { return std::uint32_t(_mm256_movemask_ps((__m256)v)); }
static inline Ints maximum(Ints a, Ints b) { return (Ints)_mm256_max_epi32((Register)a, (Register)b); }
static inline Ints count_above(Ints count, Ints a, Ints b) { return count - (a > b); }
#endif

// m[i] = the multiple, or v where it is not finite. m may be the array that is read.
struct Multiples {
  float* m;

  void put(std::size_t i, float v, bool sent, bool finite) const {
    const std::uint32_t one = bits_of(with_sign_of(v, 1.0f)) & (0u - sent);  // no branch: `sent` is random
    m[i] = finite ? float_of(one) : v;
  }
#if GQ_LEVEL >= 1
  void put(std::size_t i, Floats v, Ints sent, Ints infinite) const {
    const Ints one = ((Ints)v & std::int32_t(0x80000000)) | 0x3f800000;
    store(m + i, infinite ? v : (Floats)(one & sent));
  }
#endif
};

// One tile of own values in two bits each.
struct Signs {
  static constexpr std::size_t kWords = kTileValues / 64;
  std::uint64_t sent[kWords] = {}, negative[kWords] = {};

  void put(std::size_t i, float v, bool is_sent, bool) {
    sent[i / 64] |= std::uint64_t(is_sent) << i % 64;
    negative[i / 64] |= std::uint64_t(__builtin_signbit(v) != 0) << i % 64;
  }
#if GQ_LEVEL >= 1
  void put(std::size_t i, Floats v, Ints is_sent, Ints) {  // i is a multiple of kWidth
    sent[i / 64] |= sign_bits(is_sent) << i % 64;
    negative[i / 64] |= sign_bits((Ints)v) << i % 64;
  }
#endif
};

#if GQ_LEVEL >= 1

static inline std::size_t sum_of_lanes(Ints v) {
  std::size_t sum = 0;
  for (std::size_t k = 0; k < kWidth; ++k) sum += std::size_t(v[k]);
  return sum;
}

// As many values as whole vectors take; returns how many. ORs what is not finite into *bad, adds to *clipped.
template <bool ternary, class Out>
static inline std::size_t quantize_vectors(const float* x, const float* e, float* r, std::size_t n,
                                           const Sending& sending, const std::uint16_t* random, std::size_t begin,
                                           Out& out, bool* bad, std::size_t* clipped) {
  const Floats unit = Floats{} + sending.unit, before = Floats{} + sending.share.before,
               inverse = Floats{} + sending.share.inverse;
  Ints largest = {}, above = {};
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    Floats v = load<Floats>(x + i);
    if (e) v += load<Floats>(e + i);
    const Ints bits = (Ints)v, magnitude_bits = bits & 0x7fffffff;
    const Floats magnitude = (Floats)magnitude_bits;
    const Ints sent = ternary ? to_floats(load_words(random + i)) + 0.5f < magnitude * before * inverse * 65536.0f
                              : magnitude >= unit;
    const Ints infinite = magnitude_bits >= 0x7f800000;
    largest = maximum(largest, magnitude_bits);
    if (ternary) above = count_above(above, magnitude_bits, (Ints)unit);
    if (r) store(r + i, v - (Floats)((((Ints)unit) | (bits & std::int32_t(0x80000000))) & sent));
    out.put(begin + i, v, sent, infinite);
  }
  *bad |= sign_bits(largest >= 0x7f800000) != 0;
  *clipped += sum_of_lanes(above);
  return i;
}

#endif

// How many |x + e| are above the unit: by their bits, so that the compiler can take several at once.
static inline std::uint32_t how_many_above(const float* x, const float* e, std::size_t n, float unit) {
  const std::uint32_t unit_bits = bits_of(unit);
  std::uint32_t above = 0;
  for (std::size_t i = 0; i < n; ++i) above += (unit_bits - magnitude(e ? x[i] + e[i] : x[i])) >> 31;
  return above;
}

// n values v = x + e to out's places from `begin` on, and r = v - multiple * unit; e and r may be null. True if a value
// is not finite. *clipped grows by how many are clipped: |v| > unit where they are rounded at random, which can send no
// more than the unit; a threshold sends no more of any value that it sends.
template <class Out>
static inline bool quantize_values(const float* x, const float* e, float* r, std::size_t n, const Sending& sending,
                                   const std::uint16_t* random, std::size_t begin, Out& out, std::size_t* clipped) {
  bool bad = false;
  std::size_t i = 0;
#if GQ_LEVEL >= 1
  i = sending.ternary ? quantize_vectors<true>(x, e, r, n, sending, random, begin, out, &bad, clipped)
                      : quantize_vectors<false>(x, e, r, n, sending, random, begin, out, &bad, clipped);
#endif
  if (sending.ternary) *clipped += how_many_above(x + i, e ? e + i : nullptr, n - i, sending.unit);
  for (; i < n; ++i) {
    const float v = e ? x[i] + e[i] : x[i];
    const bool finite = is_finite(v), sent = sending(v, sending.ternary ? random[i] : 0);
    if (r) r[i] = sending.error(v, sent);
    out.put(begin + i, v, sent, finite);
    bad |= !finite;
  }
  return bad;
}

// The same for any n, with the random bits of the elements from the global index `first` on.
template <class Out>
static inline bool quantize_all(const float* x, const float* e, float* r, std::size_t n, const Quantizer& quantizer,
                                std::uint64_t first, RandomWindow& window, Out& out, std::size_t* clipped) {
  const Sending sending(quantizer);
  bool bad = false;
  for (std::size_t done = 0; done < n;) {
    const std::size_t part = n - done < window.kLongest ? n - done : window.kLongest;
    const std::uint16_t* random = quantizer.ternary ? window.at(first + done, part) : nullptr;
    bad |= quantize_values(x + done, e ? e + done : nullptr, r ? r + done : nullptr, part, sending, random, done, out,
                           clipped);
    done += part;
  }
  return bad;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
