// The stochastic rounding of levels_round.hpp on vectors: the same codes and errors with fewer operations, for norms
// that need no scaling before they are inverted.
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
  bool zero_level;

  UniformVectors(const Levels& levels, float bucket_norm) {
    const Uniform plain(levels, bucket_norm);
    inverse = Floats{} + plain.unit.inverse * 65536.0f;
    offset = Floats{} + plain.offset * 65536.0f;
    limit = Floats{} + plain.limit * 65536.0f;
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
    const Ints above_one = (round_up(minimum(steps, limit) - 1.5f) - random) >> 16;
    return bits < 0 ? negative - above_one : positive + above_one;
  }

  Floats decoded(Ints code) const { return to_floats((code << (stride - 1)) - center) * unit * norm; }
};

// At most 16 levels, kept in registers. A value beyond the table needs no clamp: it falls into the first or the last
// interval, where its fraction is not positive or not below one, and rounds to the end.
struct TabledVectors {
  Floats inverse, norm;
  Table value, bound, gap;
  int last_interval;

  TabledVectors(const Levels& levels, float bucket_norm)
      : value(levels.value), bound(bounds(levels).entry), gap(gaps(levels).entry), last_interval(levels.count - 2) {
    inverse = Floats{} + unit_of_norm(bucket_norm, 1.0f).inverse;
    norm = Floats{} + bucket_norm;
  }

  Ints code(Floats v, Ints random) const {
    const Floats y = v * inverse;
    Ints low = {};  // the interval of y, found bit by bit
#pragma GCC unroll 4
    for (int bit = 8; bit > 0; bit >>= 1) {
      if (bit > last_interval) continue;
      const Ints middle = low | bit;
      low = bound[middle] <= y ? middle : low;
    }
    const Floats fraction = (y - value[low]) * gap[low];
    const Floats draw = to_floats(random) + 0.5f;
    return draw < fraction ? low + 1 : low;
  }

  Floats decoded(Ints code) const { return value[code] * norm; }

 private:
  struct Entries {
    float entry[16];
  };

  // The levels where an interval begins; those above are out of reach.
  static Entries bounds(const Levels& levels) {
    Entries bounds;
    for (int k = 0; k < 16; ++k) bounds.entry[k] = k < levels.count - 1 ? levels.value[k] : __builtin_inff();
    return bounds;
  }

  // From a distance to a fraction in units of 2^-16, where the draws are integers.
  static Entries gaps(const Levels& levels) {
    Entries gaps;
    for (int k = 0; k < 16; ++k) gaps.entry[k] = levels.gap[k] * 65536.0f;
    return gaps;
  }
};

template <class Coder>
static inline void round_group(const Coder& coder, const float* x, const float* e, float* r,
                               const std::uint16_t* random, std::uint8_t* code) {
  Ints part[4];
#pragma GCC unroll 4
  for (std::size_t q = 0; q < 4; ++q) {
    Floats v = load<Floats>(x + q * kWidth);
    if (e) v += load<Floats>(e + q * kWidth);
    part[q] = coder.code(v, load_words(random + q * kWidth));
    if (r) store(r + q * kWidth, v - coder.decoded(part[q]));
  }
  store(code, narrow_to_bytes(part[0], part[1], part[2], part[3]));
}

// As round_plain; `code` has room for n rounded up to whole groups.
template <class Coder>
static inline void round_vectors(const Coder& coder, const float* x, const float* e, float* r,
                                 const std::uint16_t* random, std::size_t n, std::uint8_t* code) {
  std::size_t i = 0;
  for (; i + kGroup <= n; i += kGroup)
    round_group(coder, x + i, e ? e + i : nullptr, r ? r + i : nullptr, random + i, code + i);
  if (i == n) return;
  float last_x[kGroup] = {}, last_e[kGroup] = {}, last_r[kGroup];
  std::uint16_t last_random[kGroup] = {};
  std::memcpy(last_x, x + i, (n - i) * sizeof *x);
  if (e) std::memcpy(last_e, e + i, (n - i) * sizeof *e);
  std::memcpy(last_random, random + i, (n - i) * sizeof *random);
  round_group(coder, last_x, e ? last_e : nullptr, r ? last_r : nullptr, last_random, code + i);
  if (r) std::memcpy(r + i, last_r, (n - i) * sizeof *r);
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
#endif
