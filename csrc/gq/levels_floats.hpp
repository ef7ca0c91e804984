// Levels that are the numbers of a small floating-point format: a value's exponent tells how many steps its binade has,
// so that nothing is searched. At random the same codes are drawn as from a table of these levels (levels_round.hpp).
#pragma once
#include "gq/kernels.hpp"
#include "gq/levels_round.hpp"
#include "gq/levels_wire.hpp"
#include "gq/standard.hpp"
#include "gq/vectors.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

static inline Unit unit_of_scale(const Levels& levels, float scale) {
  if (levels.scale == Scale::kNorm) return unit_of_norm(scale, 1.0f);
  return {1.0f, power_of_two(254 - int(bits_of(scale) >> 23))};
}

// One value of a bucket to one of the two levels around it.
struct Floating {
  Unit unit;
  const Levels& levels;

  Floating(const Levels& levels, float scale) : unit(unit_of_scale(levels, scale)), levels(levels) {}

  int code(float v, std::uint16_t random) const {
    const SmallFloats& floats = levels.floats;
    const bool negative = bits_of(v) >> 31;
    float y = float_of(magnitude(v)) * unit.before * unit.inverse;
    y = y < levels.reach ? y : levels.reach;
    int exponent = int(bits_of(y) >> 23);
    exponent = exponent > floats.lowest ? exponent : floats.lowest;
    // From zero, in steps of this binade; the lowest one goes on to zero.
    const float steps = y * float_of(std::uint32_t(254 + floats.mantissa - exponent) << 23);
    const int below = (exponent - floats.lowest) << floats.mantissa;
    if (levels.nearest) {
      const int rounded = round_even(steps);
      return code_of_number(floats, below + (rounded > 0 || floats.zero ? rounded : 1), negative);
    }
    if (!floats.zero && steps < 1) {  // between the smallest level and its negative
      const float fraction = (1.0f + (negative ? -steps : steps)) * 0.5f;
      return code_of_number(floats, 1, !rounds_up(fraction, random));
    }
    // Fractions are taken from the lower level, as in a table: of a negative value, from the magnitude above.
    const int whole = int(steps), above = whole + 1;
    const float fraction = negative ? float(above) - steps : steps - float(whole);
    const bool up = rounds_up(fraction, random);
    return code_of_number(floats, below + (up != negative ? above : whole), negative);
  }
};

#if GQ_LEVEL >= 1

// The same of vectors, and levels of their codes. kSignBit: the top bit of a code is its sign.
template <bool kSignBit, bool kNearest>
struct FloatingVectors {
  const SmallFloats floats;
  const int bits, to_mantissa;  // from a number to the mantissa of a float32
  Floats inverse, scale, reach, smallest, steps_in_lowest, lowest_step;
  Ints lowest, last;
  bool rarely_lowest;  // are values of the lowest binade so few that a branch on them is predicted well?

  GQ_INLINE FloatingVectors(const Levels& levels, float bucket_scale)
      : floats(levels.floats), bits(levels.bits), to_mantissa(23 - floats.mantissa) {
    inverse = Floats{} + unit_of_scale(levels, bucket_scale).inverse;
    scale = Floats{} + bucket_scale;
    reach = Floats{} + levels.reach;
    smallest = Floats{} + power_of_two(floats.lowest);
    steps_in_lowest = Floats{} + power_of_two(254 - (floats.lowest - floats.mantissa));
    lowest_step = Floats{} + power_of_two(floats.lowest - floats.mantissa);
    lowest = Ints{} + floats.lowest;
    last = Ints{} + floats.last;
    rarely_lowest = floats.last >> floats.mantissa >= 12;
  }

  GQ_INLINE Ints code(Floats v, Ints random) const {
    const Ints all_bits = (Ints)v;
    const Floats y = minimum((Floats)(all_bits & 0x7fffffff) * inverse, reach);
    Ints negative = all_bits >> 31;  // 0 or -1
    const Ints number = kNearest ? nearest_number(y) : random_number(y, random, negative);
    if (kSignBit) return number | (negative & (1 << (bits - 1)));
    return ((number ^ negative) + (negative & floats.negative) + floats.positive) & floats.mask;
  }

  // In units of the scale.
  GQ_INLINE Floats level(Ints code) const {
    Ints number = code & ((1 << (bits - 1)) - 1), sign = code << (32 - bits);
    if (!kSignBit) {
      sign = code - floats.positive;
      if (!floats.zero)
        sign = sign > 0 ? sign : sign - 1;
      else if (floats.positive == 0)  // two's complement
        sign = (code << (32 - bits)) >> (32 - bits);
      number = sign < 0 ? -sign : sign;
    }
    number = number < last ? number : last;
    const Floats low = to_floats(number) * lowest_step;
    const Floats high = (Floats)((number << to_mantissa) + ((floats.lowest - 1) << 23));
    const Floats magnitude = number < (1 << floats.mantissa) ? low : high;
    return (Floats)((Ints)magnitude | (sign & std::int32_t(0x80000000)));
  }

  GQ_INLINE Floats decoded(Ints code) const { return level(code) * scale; }

 private:
  GQ_INLINE Ints nearest_number(Floats y) const {
    const Ints biased = (Ints)y >> 23, exponent = biased > lowest ? biased : lowest;
    Ints rounded = round_even(y * (Floats)((254 + floats.mantissa - exponent) << 23));
    if (!floats.zero) rounded = rounded > 0 ? rounded : 1;
    return ((exponent - lowest) << floats.mantissa) + rounded;
  }

  // Above the lowest binade the bits of y, less those that the format has not, are the number: a carry out of these
  // rounds it up. With F = 65536 times the fraction, a draw d does so iff d + 0.5 < F, that is iff 128 d + 64 is less
  // than 128 F, which those bits are when shifted by the mantissa; for negative values iff not d + 0.5 < 65536 - F.
  GQ_INLINE Ints random_number(Floats y, Ints random, Ints& negative) const {
    const Ints draw = random ^ (negative & 0xffff);
    const Ints most_not_up = ((draw * 128 + 64) >> floats.mantissa) + negative;
    const Ints number =
        (((Ints)y + ((1 << to_mantissa) - 1) - most_not_up) >> to_mantissa) - ((floats.lowest - 1) << floats.mantissa);
    const Ints in_lowest = y < smallest;
    if (rarely_lowest && !any(in_lowest)) return number;
    const Floats steps = y * steps_in_lowest, draws = to_floats(random) + 0.5f;
    if (!floats.zero) {  // between the smallest level and its negative
      const Ints up = draws < (1.0f + (negative < 0 ? -steps : steps)) * 32768.0f;
      negative = in_lowest ? ~up : negative;
      return in_lowest ? Ints{} + 1 : number;
    }
    const Ints whole = to_ints(steps);
    const Floats beyond = steps - to_floats(whole);
    const Ints up = draws < (negative < 0 ? 1.0f - beyond : beyond) * 65536.0f;
    return in_lowest ? whole + ((up ^ negative) & 1) : number;
  }
};

#endif

}  // namespace GQ_NAMESPACE
}  // namespace gq
