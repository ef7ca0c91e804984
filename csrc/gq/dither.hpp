// Values as steps of their row, by subtractive dither: the grid of steps is shifted at random for each value, which the
// decoder, who draws the same bits, takes back. A matrix is one stream of codes (bits.hpp); each row has a step.
#pragma once
#include "gq/bits.hpp"
#include "gq/kernels.hpp"
#include "gq/random.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr std::size_t kDitherPart = 512;  // values that are worked on at once

// The largest magnitude of each row; an infinity for one with a value that is not finite.
static void largest_of_rows(const float* x, std::size_t rows, std::size_t columns, float* largest) {
  for (std::size_t row = 0; row < rows; ++row, x += columns) {
    std::uint32_t most = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      const std::uint32_t mine = magnitude(x[i]);
      most = mine > most ? mine : most;
    }
    largest[row] = float_of(most < kInfinity ? most : kInfinity);
  }
}

// In [-1/2, 1/2), for 16 random bits. As all that follows, for a number or a vector of them.
template <class Number>
static inline __attribute__((always_inline)) Number shift_of(Number random) {
  return (random + 0.5f) * 0x1p-16f - 0.5f;
}

// The code of a value that is so many steps, shift included: of the nearest whole number, ties to the even one.
template <class Number>
static inline __attribute__((always_inline)) Number nearest_code(Number steps, const Dither& dither) {
  const Number least = Number{} - dither.offset, most = Number{} + dither.most;
  Number number = (steps + 0x1.8p23f) - 0x1.8p23f;  // |steps| < 2^22
  number = number < least ? least : number;
  number = number > most ? most : number;
  return number + dither.offset;
}

// The codes of n values of one row that has a step, to the nearest.
static inline void nearest_part(const float* x, std::size_t n, float step, const Dither& dither,
                                const std::uint16_t* random, std::uint8_t* code) {
  std::size_t i = 0;
#if GQ_LEVEL >= 1
  for (; i + kGroup <= n; i += kGroup) {
    Ints part[4];
    for (std::size_t q = 0; q < 4; ++q) {
      const Floats v = load<Floats>(x + i + q * kWidth);
      const Floats shift = shift_of(to_floats(load_words(random + i + q * kWidth)));
      const Ints near = to_ints(nearest_code(v / step + shift, dither));
      part[q] = v == 0.0f ? Ints{} + dither.zero : near;
    }
    store(code + i, narrow_to_bytes(part[0], part[1], part[2], part[3]));
  }
#endif
  for (; i < n; ++i) {
    const float steps = x[i] / step + shift_of(float(random[i]));
    code[i] = std::uint8_t(x[i] == 0 ? float(dither.zero) : nearest_code(steps, dither));
  }
}

// The codes of n values of one row; one without a step has zeros only.
static inline void dither_part(const float* x, std::size_t n, float step, const Dither& dither,
                               const std::uint16_t* random, std::uint8_t* code) {
  const bool zeros = !(step > 0);
  if (dither.nearest && zeros)
    std::memset(code, dither.zero, n);
  else if (dither.nearest)
    nearest_part(x, n, step, dither, random, code);
  else  // one bit: are value and shift above the place where the two steps meet?
    for (std::size_t i = 0; i < n; ++i)
      code[i] = zeros ? dither.meeting == 0 : x[i] / step + shift_of(float(random[i])) >= dither.meeting;
}

// y := n values of one row: codes in steps from that of the first code on, less their shifts.
static inline void shifted_part(const std::uint8_t* code, std::size_t n, float step, float first, int zero,
                                const std::uint16_t* random, float* y) {
  std::size_t i = 0;
#if GQ_LEVEL >= 1
  for (; i + kWidth <= n; i += kWidth) {
    const Ints codes = load_bytes(code + i);
    const Floats shift = shift_of(to_floats(load_words(random + i)));
    const Floats number = (to_floats(codes) + first) - shift;
    store(y + i, (codes == zero ? Floats{} : number) * step);
  }
#endif
  for (; i < n; ++i) y[i] = (code[i] == zero ? 0.0f : (float(code[i]) + first) - shift_of(float(random[i]))) * step;
}

// Codes of the values [first, first + n) of a matrix, first a multiple of 8.
static void dither_encode(const float* x, std::size_t first, std::size_t n, std::size_t columns, const float* step,
                          const Dither& dither, const Stream& stream, std::uint64_t begin, std::uint8_t* wire) {
  RandomWindow window(stream, begin + first + n);
  std::uint8_t code[kDitherPart];
  std::uint8_t* out = wire + first / 8 * dither.bits;
  for (std::size_t done = 0, part; done < n; done += part, out += part / 8 * dither.bits) {
    part = n - done < kDitherPart ? n - done : kDitherPart;
    const std::uint16_t* const random = window.at(begin + first + done, part);
    for (std::size_t at = 0, some; at < part; at += some) {
      const std::size_t element = first + done + at, row = element / columns, left = (row + 1) * columns - element;
      some = part - at < left ? part - at : left;
      dither_part(x + element, some, step[row], dither, random + at, code + at);
    }
    pack(code, part, dither.bits, out);
  }
}

// y := the values [first, first + n) of a matrix, first a multiple of 8: the number of the code times the step. If it
// `shifts`, numbers go up by 1 from code to code, and each is less its shift, but that of the code `zero` is 0.
static void dither_decode(const std::uint8_t* wire, std::size_t first, std::size_t n, std::size_t columns,
                          const float* step, const float* number, int bits, bool shifts, int zero, const Stream& stream,
                          std::uint64_t begin, float* y) {
  RandomWindow window(stream, begin + first + n);
  std::uint8_t code[kDitherPart];
  const std::uint8_t* in = wire + first / 8 * bits;
  for (std::size_t done = 0, part; done < n; done += part, in += part / 8 * bits) {
    part = n - done < kDitherPart ? n - done : kDitherPart;
    unpack(in, part, bits, code);
    const std::uint16_t* const random = shifts ? window.at(begin + first + done, part) : nullptr;
    for (std::size_t at = 0, some; at < part; at += some) {
      const std::size_t element = first + done + at, row = element / columns, left = (row + 1) * columns - element;
      some = part - at < left ? part - at : left;
      if (shifts)
        shifted_part(code + at, some, step[row], number[0], zero, random + at, y + element);
      else
        for (std::size_t i = 0; i < some; ++i) y[element + i] = number[code[at + i]] * step[row];
    }
  }
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
