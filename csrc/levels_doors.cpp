#include "gq/levels_doors.hpp"

#include "gq/buckets.hpp"
#include "gq/door.hpp"
#include "gq/grid.hpp"
#include "gq/levels_wire.hpp"

namespace gq {

namespace {

std::size_t nbytes_of(std::size_t n, const Levels& levels, const Grid& grid) {
  return levels_offset(grid, n, unit_count(grid, n), levels);
}

std::size_t nbytes_of(const Region& region, const Levels& levels) {
  return key_size(levels, region.size) + nbytes_of(region.size, levels, region.grid);
}

// work(piece, buckets, its wire) for the whole buckets of each thread; `wire` begins behind the key.
template <class Byte, class Work>
int by_buckets(const Region& region, const Levels& levels, std::uint64_t key, Byte* wire, Work work) {
  return by_units(region.grid, region.size, [&](const UnitPiece& piece) {
    const Buckets buckets(levels, key, piece.grid, piece.size());
    if (!buckets) return kOutOfMemory;
    return work(piece, buckets, wire + (piece.begin ? nbytes_of(piece.begin, levels, region.grid) : 0));
  });
}

int decode_regions(const std::uint8_t* wire, float* y, const Levels& levels, const Regions& regions, float scale,
                   bool add) {
  const auto nbytes = [&](const Region& region) { return nbytes_of(region, levels); };
  return by_messages(regions, wire, nbytes, [&](const Region& region, std::size_t place, const std::uint8_t* message) {
    const std::size_t before = key_size(levels, region.size);
    const std::uint64_t key = before ? load<std::uint64_t>(message) : 0;
    return by_buckets(region, levels, key, message + before,
                      [&](const UnitPiece& piece, const Buckets& buckets, const std::uint8_t* from) {
                        const std::size_t of_piece = nbytes_of(piece.size(), levels, piece.grid);
                        float* const to = y + place + piece.begin;
                        return buckets.decode(from, of_piece, to, piece.size(), piece.grid, scale, add);
                      });
  });
}

// Are regions encoded as they are, by this thread alone, so that each costs its kernel and little more?
bool is_simple(const Levels& levels, const Regions& regions) {
  return !levels.rotated && !levels.contracted && threads_for(elements_of(regions)) == 1;
}

}  // namespace

void philox(std::uint32_t word[4], std::uint32_t key0, std::uint32_t key1) { kernels().philox(word, key0, key1); }

void random16(const Stream& stream, std::uint64_t first, std::size_t count, std::uint16_t* out) {
  kernels().random16(stream, first, count, out);
}

bool pack(const std::uint8_t* code, std::size_t n, int bits, std::uint8_t* wire) {
  int all = 0;
  for (std::size_t i = 0; i < n; ++i) all |= code[i];
  if (all >> bits != 0) return false;
  kernels().pack(code, n, bits, wire);
  return true;
}

void unpack(const std::uint8_t* wire, std::size_t n, int bits, std::uint8_t* code) {
  kernels().unpack(wire, n, bits, code);
}

bool uniform_levels(int bits, bool zero_level, Levels& levels) {
  if (bits < 1 || bits > 8 || (zero_level && bits < 2)) return false;
  const FloatGuard guard;
  levels = Levels();
  levels.uniform = true;
  levels.reach = 1;
  levels.stride = zero_level ? 1 : 2;
  levels.center = zero_level ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
  levels.unit = 1.0f / float(levels.center);
  levels.steps = float(levels.center) / float(levels.stride);
  levels.bits = bits;
  levels.count = zero_level ? 2 * levels.center + 1 : levels.center + 1;
  for (int code = 0; code < 256; ++code) levels.value[code] = uniform_level(levels, code);
  return true;
}

bool table_levels(int bits, const float* value, std::size_t count, Levels& levels) {
  if (bits < 1 || bits > 8 || count < 2 || count > std::size_t(1) << bits) return false;
  const FloatGuard guard;
  levels = Levels();
  levels.bits = bits;
  levels.reach = 1;
  levels.count = static_cast<int>(count);
  for (std::size_t code = 0; code < 256; ++code) levels.value[code] = value[code < count ? code : count - 1];
  if (!(value[0] >= -1 && value[count - 1] <= 1)) return false;
  for (std::size_t code = 0; code + 1 < count; ++code) {
    levels.gap[code] = 1.0f / (value[code + 1] - value[code]);
    if (!(levels.gap[code] > 0 && levels.gap[code] < 0x1p100f)) return false;  // also when not a number
  }
  return true;
}

bool floating_levels(int bits, int mantissa, int lowest, int last, bool zero_level, Order order, Levels& levels) {
  const int biased = lowest + 127, half = bits > 0 && bits <= 8 ? 1 << (bits - 1) : 0;
  const bool ascending = order == Order::kAscending;
  const int most = ascending && !zero_level ? half : half - 1;
  if (mantissa < 0 || mantissa > 6 || biased <= mantissa || biased > 254) return false;
  if (last < 1 || last > most || biased + (last >> mantissa) > 254 || (ascending && last < most)) return false;
  if (!zero_level && (mantissa > 0 || !ascending)) return false;
  const FloatGuard guard;
  levels = Levels();
  levels.bits = bits;
  levels.count = 2 * last + zero_level;
  levels.floating = true;
  levels.floats = {mantissa, biased, last, zero_level, /*flip=*/-1, /*negative=*/1, /*positive=*/0, 2 * half - 1};
  if (order == Order::kSignAndMagnitude) levels.floats.flip = 0, levels.floats.negative = half;
  if (ascending) levels.floats.positive = half - 1, levels.floats.negative = zero_level ? 1 : 2;
  levels.reach = level_of_number(levels.floats, last);
  // Every code has a level: numbers above the last one read as it.
  for (const bool negative : {true, false}) {
    const bool one_more = negative ? order == Order::kTwosComplement || !zero_level : ascending;
    for (int number = zero_level ? 0 : 1; number < half + one_more; ++number) {
      const float level = level_of_number(levels.floats, number < last ? number : last);
      levels.value[code_of_number(levels.floats, number, negative)] = negative ? -level : level;
    }
  }
  for (int code = 0; ascending && code + 1 < levels.count; ++code)
    levels.gap[code] = 1.0f / (levels.value[code + 1] - levels.value[code]);
  return true;
}

std::size_t levels_nbytes(const Regions& regions, const Levels& levels) {
  return sum_over(regions, [&](const Region& region) { return nbytes_of(region, levels); });
}

int levels_encode(const float* x, const float* e, float* r, std::uint8_t* wire, const Levels& levels, bool l2,
                  const Regions& regions, const Stream* streams) {
  const auto nbytes = [&](const Region& region) { return nbytes_of(region, levels); };
  return by_messages(regions, wire, nbytes, [&](const Region& region, std::size_t place, std::uint8_t* message) {
    const Stream& stream = streams[region.segment];
    const std::uint64_t key = put_key(levels, region.size, stream, message);
    return by_buckets(region, levels, key, message + key_size(levels, region.size),
                      [&](const UnitPiece& piece, const Buckets& buckets, std::uint8_t* to) {
                        const std::size_t at = place + piece.begin;
                        return buckets.encode(x + at, shifted(e, at), shifted(r, at), to, piece.size(), l2, piece.grid,
                                              stream);
                      });
  });
}

int levels_encode_apart(const Vectors* vectors, std::uint8_t* wire, const Levels& levels, bool l2,
                        const Regions& regions, const Stream* streams) {
  const FloatGuard guard;
  const bool simple = is_simple(levels, regions);
  const auto nbytes = [&](const Region& region) { return nbytes_of(region, levels); };
  return by_messages(regions, wire, nbytes, [&](const Region& region, std::size_t, std::uint8_t* message) {
    fetch_ahead(vectors, region, regions);
    const auto [x, e, r] = *vectors++;
    if (!simple) return levels_encode(x, e, r, message, levels, l2, {&region, 1}, streams);
    const Stream& stream = streams[region.segment];
    return kernels().levels_encode(x, e, r, message, region.size, levels, l2, region.grid, stream);
  });
}

int levels_decode_apart(const std::uint8_t* wire, float* const* y, const Levels& levels, const Regions& regions,
                        float scale) {
  const FloatGuard guard;
  const bool simple = is_simple(levels, regions);
  const auto nbytes = [&](const Region& region) { return nbytes_of(region, levels); };
  return by_messages(regions, wire, nbytes, [&](const Region& region, std::size_t, const std::uint8_t* message) {
    fetch_ahead(y, region, regions);
    float* const to = *y++;
    if (!simple) return levels_decode(message, to, levels, {&region, 1}, scale);
    return kernels().levels_decode(message, nbytes_of(region, levels), to, region.size, levels, region.grid, scale,
                                   false);
  });
}

int levels_decode(const std::uint8_t* wire, float* y, const Levels& levels, const Regions& regions, float scale) {
  return decode_regions(wire, y, levels, regions, scale, false);
}

int levels_decode_add(const std::uint8_t* wire, float* y, const Levels& levels, const Regions& regions) {
  return decode_regions(wire, y, levels, regions, 1.0f, true);
}

void levels_spread(const float* x, const float* e, bool l2, int power, const Regions& regions, double* weight) {
  const FloatGuard guard;
  by_regions(regions, [&](const Region& region, std::size_t place) {
    kernels().levels_spread(x + place, shifted(e, place), region.size, l2, power, region.grid, weight);
    return 0;
  });
}

}  // namespace gq
