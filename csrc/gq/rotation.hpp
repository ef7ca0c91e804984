// Randomized Hadamard rotations: every unit times random signs, then the orthonormal Walsh-Hadamard transform, one or
// more rounds of both. If the n values of a unit, 2^k <= n < 2^(k+1), are no power of two, two windows are transformed:
// the first 2^k values, then, after other signs, the last 2^k. Before that the unit's halves are mixed, since windows
// that overlap little would leave each half as large as it was.
//
// The sign of element i before window w of round t is bit i % 16 of random16(i / 16) of the stream with hop 2 t + w, 1
// for minus; i counts from the beginning of the vector.
#pragma once
#include "gq/grid.hpp"
#include "gq/random.hpp"
#include "gq/vectors.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// One of the two halves of every pair of values `half` apart becomes the sum, the other the difference.
static inline void butterflies(float* v, std::size_t n, std::size_t half) {
  for (std::size_t begin = 0; begin < n; begin += 2 * half)
    for (std::size_t j = begin; j < begin + half; ++j) {
      const float a = v[j], b = v[j + half];
      v[j] = a + b;
      v[j + half] = a - b;
    }
}

#if GQ_LEVEL >= 1

// The same with lanes of one vector, kHalf apart.
template <int kHalf>
static inline Floats butterflies_within(Floats v) {
  Ints other;
  Floats sign;
  for (int lane = 0; lane < int(kWidth); ++lane) {
    other[lane] = lane ^ kHalf;
    sign[lane] = lane & kHalf ? -1.0f : 1.0f;
  }
#if GQ_LEVEL == 2
  return (Floats)_mm512_fmadd_ps((__m512)v, (__m512)sign, (__m512)__builtin_shuffle(v, other));  // the product is exact
#else
  return __builtin_shuffle(v, other) + (Floats)((Ints)v ^ ((Ints)sign & INT32_MIN));
#endif
}

static inline Floats hadamard_within(Floats v) {
  v = butterflies_within<1>(v);
  v = butterflies_within<2>(v);
  v = butterflies_within<4>(v);
  if constexpr (kWidth == 16) v = butterflies_within<8>(v);
  return v;
}

template <int kHalf>
static GQ_INLINE void butterflies_among(Floats (&v)[8]) {
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) {
    if (k & kHalf) continue;
    const Floats a = v[k], b = v[k + kHalf];
    v[k] = a + b;
    v[k + kHalf] = a - b;
  }
}

// Eight vectors `half` values apart: `half`, 2 * half and 4 * half at once. kFirst: what lies within a vector before.
template <bool kFirst>
static GQ_INLINE void three_butterflies(float* v, std::size_t half, float factor) {
  Floats part[8];
#pragma GCC unroll 8
  for (std::size_t k = 0; k < 8; ++k) {
    part[k] = load<Floats>(v + k * half);
    if (kFirst) part[k] = hadamard_within(part[k] * factor);
  }
  butterflies_among<1>(part);
  butterflies_among<2>(part);
  butterflies_among<4>(part);
#pragma GCC unroll 8
  for (std::size_t k = 0; k < 8; ++k) store(v + k * half, part[k]);
}

#endif

// The butterflies from `half` on, of n = 2^k values.
static inline void butterflies_from(float* v, std::size_t n, std::size_t half) {
#if GQ_LEVEL >= 1
  if (half >= kWidth)
    for (; 8 * half <= n; half *= 8)
      for (std::size_t begin = 0; begin < n; begin += 8 * half)
        for (std::size_t j = begin; j < begin + half; j += kWidth) three_butterflies<false>(v + j, half, 1.0f);
#endif
  for (; half < n; half *= 2) butterflies(v, n, half);
}

constexpr std::size_t kInCache = 4096;  // values, in the first cache

// The Walsh-Hadamard transform of n = 2^k values times a factor; pairs of neighbours first.
static inline void hadamard(float* v, std::size_t n, float factor) {
  if (n > kInCache) {
    for (std::size_t begin = 0; begin < n; begin += kInCache) hadamard(v + begin, kInCache, factor);
    return butterflies_from(v, n, kInCache);
  }
#if GQ_LEVEL >= 1
  constexpr std::size_t kEight = 8 * kWidth;
  if (n >= kEight) {
    for (std::size_t i = 0; i < n; i += kEight) three_butterflies<true>(v + i, kWidth, factor);
    return butterflies_from(v, n, kEight);
  }
#endif
  for (std::size_t i = 0; i < n; ++i) v[i] *= factor;
  butterflies_from(v, n, 1);
}

// 1 / sqrt(n), n = 2^k.
static inline float one_over_root(std::size_t n) {
  const int k = 63 - __builtin_clzll(n);
  return float_of(std::uint32_t(127 - k / 2) << 23) * (k % 2 ? 0x1.6a09e6p-1f : 1.0f);
}

static inline float with_sign(float v, std::uint32_t word, std::uint32_t bit) {
  return float_of(bits_of(v) ^ (word << (31 - bit) & 0x80000000));
}

// 16 values by the bits of one word.
static inline void change_16_signs(float* v, std::uint32_t word) {
#if GQ_LEVEL >= 1
  Ints shift;
  for (int lane = 0; lane < int(kWidth); ++lane) shift[lane] = 31 - lane;
  for (std::size_t begin = 0; begin < 16; begin += kWidth) {
    const Ints bits = (Ints{} + static_cast<std::int32_t>(word >> begin)) << shift & INT32_MIN;
    store(v + begin, (Ints)(load<Ints>(v + begin) ^ bits));
  }
#else
  for (std::uint32_t j = 0; j < 16; ++j) v[j] = with_sign(v[j], word, j);
#endif
}

// Changes the signs of values whose bit is set; the first value is element `first` of the vector.
static inline void change_signs(float* v, std::size_t n, std::uint64_t first, RandomWindow& signs) {
  for (std::size_t i = 0; i < n;) {
    const std::size_t skipped = (first + i) % 16;
    if (skipped == 0 && n - i >= 16) {
      const std::size_t words = (n - i) / 16 < RandomWindow::kLongest ? (n - i) / 16 : RandomWindow::kLongest;
      const std::uint16_t* const word = signs.at((first + i) / 16, words);
      for (std::size_t k = 0; k < words; ++k, i += 16) change_16_signs(v + i, word[k]);
      continue;
    }
    const std::uint32_t word = *signs.at((first + i) / 16, 1);
    for (std::size_t j = skipped; j < 16 && i < n; ++j, ++i) v[i] = with_sign(v[i], word, std::uint32_t(j));
  }
}

// Value i and value i + ceil(n / 2) become their sum and their difference, over sqrt(2); it is its own inverse.
static inline void mix_halves(float* v, std::size_t n) {
  constexpr float kFactor = 0x1.6a09e6p-1f;
  const std::size_t pairs = n / 2;
  float* const other = v + (n - pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    const float a = v[i] * kFactor, b = other[i] * kFactor;
    v[i] = a + b;
    other[i] = a - b;
  }
}

constexpr int kMostRounds = 4;

// Rotations by one key, of the units of a vector in order.
class Rotation {
 public:
  // `end`: elements of the vector up to the end of the last unit.
  Rotation(std::uint64_t key, std::uint64_t end)
      : signs_{window(key, 0, end), window(key, 1, end), window(key, 2, end), window(key, 3, end),
               window(key, 4, end), window(key, 5, end), window(key, 6, end), window(key, 7, end)} {}

  // v: a unit of n values, the first of which is element `first` of the vector.
  void turn(float* v, std::size_t n, std::uint64_t first, int rounds) {
    const std::size_t width = width_of(n), second = n - width;
    for (int round = 0; round < rounds; ++round) {
      change_signs(v, n, first, signs_[2 * round]);
      if (second) mix_halves(v, n);
      hadamard(v, width, one_over_root(width));
      if (!second) continue;
      change_signs(v + second, width, first + second, signs_[2 * round + 1]);
      hadamard(v + second, width, one_over_root(width));
    }
  }

  void turn_back(float* v, std::size_t n, std::uint64_t first, int rounds) {
    const std::size_t width = width_of(n), second = n - width;
    for (int round = rounds - 1; round >= 0; --round) {
      if (second) {
        hadamard(v + second, width, one_over_root(width));
        change_signs(v + second, width, first + second, signs_[2 * round + 1]);
      }
      hadamard(v, width, one_over_root(width));
      if (second) mix_halves(v, n);
      change_signs(v, n, first, signs_[2 * round]);
    }
  }

 private:
  static std::size_t width_of(std::size_t n) { return std::size_t(1) << (63 - __builtin_clzll(n)); }

  static RandomWindow window(std::uint64_t key, std::uint32_t hop, std::uint64_t end) {
    return RandomWindow({std::uint32_t(key), std::uint32_t(key >> 32), hop, 0, 0}, (end + 15) / 16);
  }

  RandomWindow signs_[2 * kMostRounds];
};

// y = the rotated units of x, or rotated back; y may be x. At most kMostRounds.
static void rotate(const float* x, float* y, std::size_t n, const Grid& grid, std::uint64_t key, int rounds,
                   bool back) {
  Rotation rotation(key, grid.start + n);
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    float* const v = y + unit.begin;
    if (y != x) std::memcpy(v, x + unit.begin, unit.height() * sizeof(float));
    if (back)
      rotation.turn_back(v, unit.height(), grid.start + unit.begin, rounds);
    else
      rotation.turn(v, unit.height(), grid.start + unit.begin, rounds);
  }
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
