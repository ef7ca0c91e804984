// Randomized Hadamard rotations: every unit times random signs, then the orthonormal Walsh-Hadamard transform, one or
// more rounds of both. A unit of n values, 2^k <= n < 2^(k+1), takes part in two windows if n is no power of two: the
// first 2^k values are transformed, then the last 2^k.
//
// The sign of element i in window w of round t is bit i % 16 of random16(i / 16) of the stream with hop 2 t + w, 1 for
// minus; i counts from the beginning of the vector.
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
  Ints other, upper;
  for (int lane = 0; lane < int(kWidth); ++lane) {
    other[lane] = lane ^ kHalf;
    upper[lane] = lane & kHalf ? INT32_MIN : 0;
  }
  return __builtin_shuffle(v, other) + (Floats)((Ints)v ^ upper);
}

static inline Floats hadamard_within(Floats v) {
  v = butterflies_within<1>(v);
  v = butterflies_within<2>(v);
  v = butterflies_within<4>(v);
  if constexpr (kWidth == 16) v = butterflies_within<8>(v);
  return v;
}

// `half` and 2 * half at once.
static inline void two_butterflies(float* v, std::size_t n, std::size_t half) {
  for (std::size_t begin = 0; begin < n; begin += 4 * half)
    for (std::size_t j = begin; j < begin + half; j += kWidth) {
      float* const at = v + j;
      const Floats a = load<Floats>(at), b = load<Floats>(at + half);
      const Floats c = load<Floats>(at + 2 * half), d = load<Floats>(at + 3 * half);
      const Floats sum = a + b, difference = a - b, other_sum = c + d, other_difference = c - d;
      store(at, sum + other_sum);
      store(at + half, difference + other_difference);
      store(at + 2 * half, sum - other_sum);
      store(at + 3 * half, difference - other_difference);
    }
}

#endif

// The Walsh-Hadamard transform of n = 2^k values, not scaled; pairs of neighbours first.
static inline void hadamard(float* v, std::size_t n) {
  std::size_t half = 1;
#if GQ_LEVEL >= 1
  if (n >= 4 * kWidth) {
    for (std::size_t i = 0; i < n; i += kWidth) store(v + i, hadamard_within(load<Floats>(v + i)));
    for (half = kWidth; 4 * half <= n; half *= 4) two_butterflies(v, n, half);
  }
#endif
  for (; half < n; half *= 2) butterflies(v, n, half);
}

// 1 / sqrt(n), n = 2^k.
static inline float one_over_root(std::size_t n) {
  const int k = 63 - __builtin_clzll(n);
  return float_of(std::uint32_t(127 - k / 2) << 23) * (k % 2 ? 0x1.6a09e6p-1f : 1.0f);
}

// v times a factor, and where a bit is set times -1; the first bit is that of element `first` of the vector.
static inline void change_signs(float* v, std::size_t n, std::uint64_t first, float factor, RandomWindow& signs) {
  for (std::size_t i = 0; i < n;) {
    const std::size_t skipped = (first + i) % 16;
    if (skipped == 0 && n - i >= 16) {
      const std::size_t words = (n - i) / 16 < RandomWindow::kLongest ? (n - i) / 16 : RandomWindow::kLongest;
      const std::uint16_t* const word = signs.at((first + i) / 16, words);
      for (std::size_t k = 0; k < words; ++k, i += 16)
        for (std::uint32_t j = 0; j < 16; ++j)
          v[i + j] = float_of(bits_of(v[i + j] * factor) ^ (std::uint32_t(word[k]) << (31 - j) & 0x80000000));
      continue;
    }
    const std::uint32_t word = *signs.at((first + i) / 16, 1);
    for (std::size_t j = skipped; j < 16 && i < n; ++j, ++i)
      v[i] = float_of(bits_of(v[i] * factor) ^ (word << (31 - j) & 0x80000000));
  }
}

// The windows of all rounds of a rotation, from `key`.
class Rotation {
 public:
  Rotation(std::uint64_t key, int rounds) : key_(key), rounds_(rounds) {}

  // v: a unit of n values, the first of which is element `first` of the vector.
  void turn(float* v, std::size_t n, std::uint64_t first) const {
    const std::size_t width = window_of(n);
    for (int round = 0; round < rounds_; ++round)
      for (int window = 0; window < (width < n ? 2 : 1); ++window) {
        const std::size_t begin = window ? n - width : 0;
        RandomWindow signs = signs_of(round, window, first + n);
        change_signs(v + begin, width, first + begin, one_over_root(width), signs);
        hadamard(v + begin, width);
      }
  }

  void turn_back(float* v, std::size_t n, std::uint64_t first) const {
    const std::size_t width = window_of(n);
    for (int round = rounds_ - 1; round >= 0; --round)
      for (int window = width < n ? 1 : 0; window >= 0; --window) {
        const std::size_t begin = window ? n - width : 0;
        RandomWindow signs = signs_of(round, window, first + n);
        for (std::size_t i = begin; i < begin + width; ++i) v[i] *= one_over_root(width);
        hadamard(v + begin, width);
        change_signs(v + begin, width, first + begin, 1.0f, signs);
      }
  }

 private:
  static std::size_t window_of(std::size_t n) { return std::size_t(1) << (63 - __builtin_clzll(n)); }

  RandomWindow signs_of(int round, int window, std::uint64_t end) const {
    const auto hop = static_cast<std::uint32_t>(2 * round + window);
    return RandomWindow({std::uint32_t(key_), std::uint32_t(key_ >> 32), hop, 0, 0}, (end + 15) / 16);
  }

  std::uint64_t key_;
  int rounds_;
};

// y = the rotated units of x, or rotated back; y may be x.
static void rotate(const float* x, float* y, std::size_t n, const Grid& grid, std::uint64_t key, int rounds,
                   bool back) {
  const Rotation rotation(key, rounds);
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    float* const v = y + unit.begin;
    if (y != x) std::memcpy(v, x + unit.begin, unit.height() * sizeof(float));
    if (back)
      rotation.turn_back(v, unit.height(), grid.start + unit.begin);
    else
      rotation.turn(v, unit.height(), grid.start + unit.begin);
  }
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
