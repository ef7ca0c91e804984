// The rounding of levels_round.hpp on vectors: the same codes and errors with fewer operations, for scales that need no
// scaling before they are inverted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/kernels.hpp"
#include "gq/levels_round.hpp"
#include "gq/vectors.hpp"

#if GQ_LEVEL >= 1

namespace gq {
namespace GQ_NAMESPACE {

// Steps are counted in units of 2^-16, where the draws are integers: scaling by a power of two changes no rounding.
//
// A draw d rounds F (of 65536) up iff d + 0.5 < F, that is iff d < ceil(F - 0.5); so with W = ceil(steps - 0.5) the
// rounded number of whole steps is floor((W + 65535 - d) / 65536) = floor((ceil(steps - 1.5) - d) / 65536) + 1.
// steps - 0.5 and steps - 1.5 are exact where it matters: steps has at most 24 bits and is at most 2^23.
struct UniformVectors {
  Floats inverse, offset, limit, unit, norm;
  Ints positive, negative;  // the codes of one step up and one step down
  int stride, center;
  bool zero_level, nearest;

  UniformVectors(const Levels& levels, float bucket_norm) {
    const Uniform plain(levels, bucket_norm);
    nearest = levels.nearest;
    const float in_step = nearest ? 1.0f : 65536.0f;
    inverse = Floats{} + plain.unit.inverse * in_step;
    offset = Floats{} + plain.offset * in_step;
    limit = Floats{} + plain.limit * in_step;
    unit = Floats{} + levels.unit;
    norm = Floats{} + bucket_norm;
    positive = Ints{} + (plain.positive + 1);
    negative = Ints{} + (plain.negative - 1);
    stride = levels.stride;
    center = levels.center;
    zero_level = plain.offset == 0;
  }

  Ints code(Floats v, Ints random) const {
    const Ints bits = (Ints)v;
    const Floats magnitude = (Floats)(bits & 0x7fffffff);
    Floats steps = magnitude * inverse;
    if (!zero_level) steps += offset;
    steps = minimum(steps, limit);
    Ints above_one;
    if (nearest) {
      above_one = round_even(steps) - 1;
      if (!zero_level) above_one = above_one < 0 ? Ints{} : above_one;
    } else {
      above_one = (round_up(steps - 1.5f) - random) >> 16;
    }
    return bits < 0 ? negative - above_one : positive + above_one;
  }

  Floats decoded(Ints code) const { return to_floats((code << (stride - 1)) - center) * unit * norm; }
};

// A value beyond the table needs no clamp: it falls into the first or the last interval, where its fraction is not
// positive or not below one, and rounds to the end. Entries: Table, for at most 16 levels, or LongTable.
template <class Entries>
struct TabledVectors {
  Floats inverse, norm, middle;
  Entries value, gap;  // gaps in units of the draws, which are integers
  int last_interval;
  bool nearest;

  TabledVectors(const Levels& levels, float bucket_norm)
      : value(levels.value), gap(levels.gap, 65536.0f), last_interval(levels.count - 2), nearest(levels.nearest) {
    inverse = Floats{} + unit_of_norm(bucket_norm, 1.0f).inverse;
    norm = Floats{} + bucket_norm;
    middle = Floats{} + levels.value[Entries::kMost / 2];
  }

  Ints code(Floats v, Ints random) const {
    const Floats y = v * inverse;
    // The interval of y, found bit by bit. Entries behind the last level are equal to it.
    Ints low = middle <= y ? Ints{} + Entries::kMost / 2 : Ints{};
#pragma GCC unroll 7
    for (int bit = Entries::kMost / 4; bit > 0; bit >>= 1) {
      if (bit > last_interval) continue;
      const Ints higher = low | bit;
      low = value[higher] <= y ? higher : low;
    }
    low = low < last_interval ? low : Ints{} + last_interval;
    const Floats fraction = (y - value[low]) * gap[low];
    const Floats draw = nearest ? Floats{} + kNearestDraw : to_floats(random) + 0.5f;
    return draw < fraction ? low + 1 : low;
  }

  Floats decoded(Ints code) const { return value[code] * norm; }
};

// The codes of one vector, and its errors in r, which may be null.
template <class Coder>
static GQ_INLINE Ints round_vector(const Coder& coder, Floats v, const std::uint16_t* random, float* r) {
  const Ints code = coder.code(v, random ? load_words(random) : Ints{});
  if (r) store(r, v - coder.decoded(code));
  return code;
}

// As round_plain; `code` has room for n rounded up to whole groups; `random` is null where nothing is drawn.
template <class Coder>
static inline void round_vectors(const Coder& coder, const float* x, const float* e, float* r,
                                 const std::uint16_t* random, std::size_t n, std::uint8_t* code) {
  const auto sum_at = [x, e](std::size_t i) {
    return e ? load<Floats>(x + i) + load<Floats>(e + i) : load<Floats>(x + i);
  };
  const auto at = [](auto* pointer, std::size_t i) { return pointer ? pointer + i : nullptr; };
  Ints part[4];
  std::size_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
#pragma GCC unroll 4
    for (std::size_t q = 0; q < 4; ++q) {
      const std::size_t begin = i + q * kWidth;
      part[q] = round_vector(coder, sum_at(begin), at(random, begin), at(r, begin));
    }
    store(code + i, narrow_to_bytes(part[0], part[1], part[2], part[3]));
  }
  if (i == n) return;
  const std::size_t group = i;
#pragma GCC unroll 4
  for (std::size_t q = 0; q < 4; ++q) {
    part[q] = Ints{};
    if (i + kWidth > n) continue;
    part[q] = round_vector(coder, sum_at(i), at(random, i), at(r, i));
    i += kWidth;
  }
  if (i < n) {
    float last_v[kWidth] = {}, last_r[kWidth];
    std::uint16_t last_random[kWidth] = {};
    for (std::size_t k = 0; k < n - i; ++k) last_v[k] = e ? x[i + k] + e[i + k] : x[i + k];
    if (random) std::memcpy(last_random, random + i, (n - i) * sizeof *random);
    const Ints last = round_vector(coder, load<Floats>(last_v), random ? last_random : nullptr, r ? last_r : nullptr);
    const std::size_t whole = (i - group) / kWidth;
#pragma GCC unroll 4
    for (std::size_t q = 0; q < 4; ++q)
      if (q == whole) part[q] = last;
    if (r) std::memcpy(r + i, last_r, (n - i) * sizeof *r);
  }
  store(code + group, narrow_to_bytes(part[0], part[1], part[2], part[3]));
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
#endif
