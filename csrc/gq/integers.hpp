// Linear codecs: a rank's own values become whole multiples of a unit, and sums travel as those integers, exactly.
//
// `quantize` is the only step that makes an error. From then on a vector of integers is kept in float32, which is exact
// below 2^24, and written in tiles of 4096 values. A tile says in its first byte how: nothing (all are zero), dense
// (codes of the width that the largest needs), or sparse (the gaps between those that are not zero, and their codes),
// whichever is shorter.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/integers_quantize.hpp"
#include "gq/integers_tile.hpp"
#include "gq/kernels.hpp"
#include "gq/levels.hpp"
#include "gq/random.hpp"
#include "gq/sum.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// The bits of max |v|, and the sum of v * v by the sum rule, if asked for; v = x + e, e may be null.
static void measure(const float* x, const float* e, std::size_t n, bool squares, std::uint32_t* largest, double* sum) {
  *largest = 0;
  *sum = 0;
  for (std::size_t done = 0; done < n; done += kSumBlock) {
    const std::size_t part = n - done < kSumBlock ? n - done : kSumBlock;
    const std::uint32_t found = largest_magnitude(x + done, e ? e + done : nullptr, part);
    *largest = found > *largest ? found : *largest;
    if (squares) *sum += sum_of_squares(x + done, e ? e + done : nullptr, part);
  }
}

// m = n own values as multiples; *clipped grows by how many are clipped. Returns 1 if a value is not finite, else 0.
static int integers_quantize(const float* x, const float* e, float* r, float* m, std::size_t n,
                             const Quantizer& quantizer, std::uint64_t first, const Stream& stream,
                             std::size_t* clipped) {
  RandomWindow window(stream, first + n);
  const Multiples out{m};
  return quantize_all(x, e, r, n, quantizer, first, window, out, clipped);
}

// The tiles of n own values, and their sizes; *clipped grows by how many are clipped. Returns the bytes of the tiles,
// or -1 if a value is not finite.
static std::int64_t integers_encode_own(const float* x, const float* e, float* r, std::uint8_t* sizes,
                                        std::uint8_t* wire, std::size_t n, const Quantizer& quantizer,
                                        std::uint64_t first, const Stream& stream, std::size_t* clipped) {
  std::uint8_t* out = wire;
  bool bad = false;
  RandomWindow window(stream, first + n);
  for (std::size_t begin = 0; begin < n; begin += kTileValues) {
    const std::size_t height = n - begin < kTileValues ? n - begin : kTileValues;
    Signs signs;
    bad |= quantize_all(x + begin, e ? e + begin : nullptr, r ? r + begin : nullptr, height, quantizer, first + begin,
                        window, signs, clipped);
    const std::size_t made = write_signs(signs, height, out);
    set_tile_size(sizes, begin / kTileValues, made);
    out += made;
  }
  return bad ? -1 : out - wire;
}

// The tiles of n integers, and their sizes; returns their bytes, -1 if one times the unit is not finite, -2 if one is
// above `terms`.
static std::int64_t integers_encode(const float* m, std::uint8_t* sizes, std::uint8_t* wire, std::size_t n, float unit,
                                    std::uint32_t terms) {
  std::uint8_t* out = wire;
  for (std::size_t begin = 0; begin < n; begin += kTileValues) {
    const std::size_t height = n - begin < kTileValues ? n - begin : kTileValues;
    const float largest = largest_of(m + begin, height);
    if (!(largest <= float(terms))) return -2;
    if (!(largest * unit < __builtin_inff())) return -1;
    const std::size_t made = write_tile(m + begin, height, static_cast<std::uint32_t>(largest), out);
    set_tile_size(sizes, begin / kTileValues, made);
    out += made;
  }
  return out - wire;
}

// y = m * unit * scale, or y += m * unit, of tiles that have these sizes. 1 if they are malformed, else 0.
static int integers_decode(const std::uint8_t* sizes, const std::uint8_t* wire, float* y, std::size_t n, float unit,
                           float scale, bool add, std::uint32_t terms) {
  const Limits limits{terms, unit};
  for (std::size_t begin = 0; begin < n; begin += kTileValues) {
    const std::size_t height = n - begin < kTileValues ? n - begin : kTileValues;
    const std::size_t nbytes = tile_size(sizes, begin / kTileValues);
    if (!is_tile(wire, nbytes, height) || !read_tile(wire, y + begin, height, limits, scale, add)) return 1;
    wire += nbytes;
  }
  return 0;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
