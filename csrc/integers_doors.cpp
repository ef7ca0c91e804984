#include "gq/integers_doors.hpp"

#include <cmath>
#include <cstring>

#include "gq/counter.hpp"
#include "gq/door.hpp"
#include "gq/integers_wire.hpp"

namespace gq {

namespace {

enum Fault { kNotFinite = 1, kTooMany = 2 };

Grid tiles() { return {0, kTileValues, 1}; }

// The region of n values: its unit, then what encode(begin, size, sizes, wire) makes of the whole tiles of each thread.
template <class Encode>
std::int64_t encode_region(std::uint8_t* wire, std::size_t n, float unit, std::uint32_t terms, Encode encode) {
  if (n == 0) return 0;
  struct {
    std::size_t begin, size;
  } slice[kMostThreads];
  const int count = threads_for(n);
  std::uint8_t *const sizes = wire + kUnitBytes, *const first = wire + tiles_offset(n);
  store(wire, unit);
  const int fault = on_threads(count, [&](int thread) {
    const UnitPiece piece = piece_of_units(tiles(), n, thread, count);
    slice[thread].begin = tiles_bound(piece.begin, terms);
    const std::int64_t made = encode(piece.begin, piece.size(), sizes + kSizeBytes * (piece.begin / kTileValues),
                                     first + slice[thread].begin);
    slice[thread].size = made < 0 ? 0 : static_cast<std::size_t>(made);
    return made == -1 ? kNotFinite : made == -2 ? kTooMany : 0;
  });
  if (fault) return fault & kTooMany ? -2 : -1;
  std::size_t end = slice[0].size;
  for (int thread = 1; thread < count; end += slice[thread++].size)
    std::memmove(first + end, first + slice[thread].begin, slice[thread].size);
  return static_cast<std::int64_t>(tiles_offset(n) + end);
}

std::size_t bound_of(std::size_t n, std::uint32_t terms) { return n ? tiles_offset(n) + tiles_bound(n, terms) : 0; }

// Message after message: encode(region, place, unit, wire) returns the bytes of one, or what is wrong. After a value
// that is not finite the other regions are encoded all the same, for what they clip.
template <class Encode>
std::int64_t encode_regions(std::uint8_t* wire, const float* units, const Regions& regions, Encode encode) {
  std::uint8_t* at = wire;
  const int fault = by_regions(regions, [&](const Region& region, std::size_t place) {
    const std::int64_t nbytes = encode(region, place, *units++, at);
    at += nbytes < 0 ? 0 : nbytes;
    return nbytes == -1 ? kNotFinite : nbytes == -2 ? kTooMany : 0;
  });
  if (fault) return fault & kTooMany ? -2 : -1;
  return at - wire;
}

std::int64_t decode_region(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n, float unit,
                           bool whole, float scale, bool add, std::uint32_t terms) {
  if (n == 0) return 0;
  if (nbytes < tiles_offset(n)) return -1;
  const float found = load<float>(wire);
  if (!is_finite(found) || std::signbit(found) || (unit >= 0 && found != unit)) return -1;
  const int count = threads_for(n);
  const std::uint8_t* const sizes = wire + kUnitBytes;
  std::size_t start[kMostThreads], at = tiles_offset(n);
  for (int thread = 0; thread < count; ++thread) {
    const UnitPiece piece = piece_of_units(tiles(), n, thread, count);
    start[thread] = at;
    for (std::size_t begin = piece.begin; begin < piece.end; begin += kTileValues)
      at += tile_size(sizes, begin / kTileValues);
  }
  if (at > nbytes) return -1;
  const int bad = on_threads(count, [&](int thread) {
    const UnitPiece piece = piece_of_units(tiles(), n, thread, count);
    return kernels().integers_decode(sizes + kSizeBytes * (piece.begin / kTileValues), wire + start[thread],
                                     y + piece.begin, piece.size(), whole ? 1.0f : found, scale, add, terms);
  });
  return bad ? -1 : static_cast<std::int64_t>(at);
}

}  // namespace

void measure(const float* x, const float* e, const Regions& regions, bool squares, std::uint32_t* largest,
             double* totals) {
  const FloatGuard guard;
  by_regions(regions, [&](const Region& region, std::size_t place) {
    kernels().measure(x + place, shifted(e, place), region.size, squares, largest++, totals++);
    return 0;
  });
}

std::size_t integers_bound(const Regions& regions, std::uint32_t terms) {
  return sum_over(regions, [&](const Region& region) { return bound_of(region.size, terms); });
}

int integers_quantize(const float* x, const float* e, float* r, float* m, const float* units, bool ternary,
                      const Regions& regions, const Stream* streams, std::uint64_t* clipped) {
  Counter counter(clipped);
  return by_regions(regions, [&](const Region& region, std::size_t place) {
    const Quantizer quantizer = {*units++, ternary};
    return by_elements(region.size, [&](std::size_t begin, std::size_t size) {
      const std::size_t at = place + begin;
      return counter.count_in([&](std::size_t* count) {
        return kernels().integers_quantize(x + at, shifted(e, at), shifted(r, at), m + at, size, quantizer,
                                           region.grid.start + begin, streams[region.segment], count);
      });
    });
  });
}

std::int64_t integers_encode_own(const float* x, const float* e, float* r, std::uint8_t* wire, const float* units,
                                 bool ternary, const Regions& regions, const Stream* streams, std::uint64_t* clipped) {
  Counter counter(clipped);
  return encode_regions(
      wire, units, regions,
      [&](const Region& region, std::size_t place, float unit, std::uint8_t* target) -> std::int64_t {
        if (!is_finite(unit)) return -1;
        const Quantizer quantizer = {unit, ternary};
        const auto encode = [&](std::size_t begin, std::size_t size, std::uint8_t* sizes, std::uint8_t* to) {
          const std::size_t at = place + begin;
          return counter.count_in([&](std::size_t* count) {
            return kernels().integers_encode_own(x + at, shifted(e, at), shifted(r, at), sizes, to, size, quantizer,
                                                 region.grid.start + begin, streams[region.segment], count);
          });
        };
        return encode_region(target, region.size, unit, 1, encode);
      });
}

std::int64_t integers_encode(const float* m, std::uint8_t* wire, const float* units, std::uint32_t terms,
                             const Regions& regions) {
  return encode_regions(
      wire, units, regions, [&](const Region& region, std::size_t place, float unit, std::uint8_t* target) {
        const auto encode = [&](std::size_t begin, std::size_t size, std::uint8_t* sizes, std::uint8_t* to) {
          return kernels().integers_encode(m + place + begin, sizes, to, size, unit, terms);
        };
        return encode_region(target, region.size, unit, terms, encode);
      });
}

std::int64_t integers_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, const float* units, bool whole,
                             float scale, bool add, std::uint32_t terms, const Regions& regions) {
  std::size_t at = 0;
  for (const Region& region : regions) {
    const std::int64_t used = decode_region(wire + at, nbytes - at, y, region.size, *units++, whole, scale, add, terms);
    if (used < 0) return -1;
    at += static_cast<std::size_t>(used);
    y += region.size;
  }
  return static_cast<std::int64_t>(at);
}

}  // namespace gq
