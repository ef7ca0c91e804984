// Own values to whole multiples of a unit that all ranks share, up to `steps` of them, rounded at random without bias;
// values beyond the last multiple are clipped to it. Whole numbers are kept in float32, as in integers.hpp.
#pragma once
#include "gq/grid.hpp"
#include "gq/levels.hpp"
#include "gq/levels_round.hpp"
#include "gq/random.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

struct Steps {
  Steps(float unit, int steps) : unit(unit_of_norm(unit, 1.0f)), last(float(steps)), limit(unit * float(steps)) {}

  Unit unit;
  float last, limit;  // in steps, and as a value
};

// As many values as whole vectors take; returns how many.
static inline std::size_t round_vectors(const float* v, float* m, std::size_t n, const Steps& steps,
                                        const std::uint16_t* random, std::size_t* beyond) {
  std::size_t i = 0;
#if GQ_LEVEL >= 1
  const Floats before = Floats{} + steps.unit.before, inverse = Floats{} + steps.unit.inverse,
               last = Floats{} + steps.last, limit = Floats{} + steps.limit;
  Ints above = {};
  for (; i + kWidth <= n; i += kWidth) {
    const Ints bits = load<Ints>(v + i);
    const Floats magnitudes = (Floats)(bits & 0x7fffffff), size = magnitudes * before * inverse;
    above += magnitudes > limit;
    const Floats step = size < last ? size : last;
    const Floats whole = to_floats(__builtin_convertvector(step, Ints));
    const Ints up = to_floats(load_words(random + i)) + 0.5f < (step - whole) * 65536.0f;
    const Floats rounded = up ? whole + 1.0f : whole;
    store(m + i, (Floats)((Ints)rounded | (bits & INT32_MIN)) + 0.0f);  // no -0
  }
  for (std::size_t lane = 0; lane < kWidth; ++lane) *beyond -= std::size_t(std::ptrdiff_t(above[lane]));
#else
  (void)v, (void)m, (void)n, (void)steps, (void)random, (void)beyond;
#endif
  return i;
}

// m = n values v as multiples of `unit`, by the random bits of the elements from the global index `first` on; m may be
// v. *clipped grows by how many are beyond the last multiple.
static void multiples_round(const float* v, float* m, std::size_t n, float unit, int steps, std::uint64_t first,
                            const Stream& stream, std::size_t* clipped) {
  const Steps by(unit, steps);
  RandomWindow window(stream, first + n);
  for (std::size_t done = 0; done < n;) {
    const std::size_t part = n - done < window.kLongest ? n - done : window.kLongest;
    const std::uint16_t* const random = window.at(first + done, part);
    for (std::size_t i = round_vectors(v + done, m + done, part, by, random, clipped); i < part; ++i) {
      const float size = float_of(magnitude(v[done + i])) * by.unit.before * by.unit.inverse;
      *clipped += float_of(magnitude(v[done + i])) > by.limit;
      const float step = size < by.last ? size : by.last, whole = float(int(step));
      m[done + i] = with_sign_of(v[done + i], whole + float(rounds_up(step - whole, random[i]))) + 0.0f;
    }
    done += part;
  }
}

// The largest of all units' root mean squares times min(clip, sqrt(n)): no rotated value exceeds the norm of its n
// values. Infinite if a value is not finite. v = x + e.
static double largest_deviation(const float* x, const float* e, std::size_t n, const Grid& grid, double clip) {
  double largest = 0;
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    const auto height = double(unit.height());
    const double squares = sum_of_squares(x + unit.begin, e ? e + unit.begin : nullptr, unit.height());
    const double root = __builtin_sqrt(height);
    const double found = __builtin_sqrt(squares / height) * (clip < root ? clip : root);
    if (!(found < __builtin_inf())) return __builtin_inf();
    largest = found > largest ? found : largest;
  }
  return largest;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
