// How the threads of a block read a tile of integers, whatever its bytes are.
#pragma once
#include "integers_parts.hpp"
#include "scan.hpp"

namespace gq {
namespace device {

// What is read: y = integer * unit * scale, or y += it.
struct Reading {
  std::uint32_t terms;
  float unit, scale;
  bool add;

  float value(std::int32_t integer, std::uint32_t* largest) const {
    const auto size = static_cast<std::uint32_t>(integer < 0 ? -integer : integer);
    *largest = size > *largest ? size : *largest;
    return static_cast<float>(integer) * unit * scale;
  }

  // May the integers be there, up to the largest?
  bool holds(std::uint32_t largest) const { return Limits{terms, unit}.hold(largest); }
};

constexpr std::uint64_t kNoRegion = ~std::uint64_t(0);

// Of a region of a message that begins `at` this byte: where its tiles begin, and its length; kNoRegion if its head is
// not within the message, or no lawful one. For a warp.
static inline std::uint64_t read_sizes(const std::uint8_t* wire, std::uint64_t nbytes, std::uint64_t at, float unit,
                                       const Regions& regions, std::size_t region, const Kept& kept) {
  const std::size_t first = regions.first_tile(region), tiles = regions.first_tile(region + 1) - first;
  const std::uint64_t head = tiles_offset(regions.size(region));
  if (at > nbytes || nbytes - at < head) return kNoRegion;
  const std::uint8_t* const message = wire + at;
  const float found = load<float>(message);
  std::uint64_t length = head;
  for (std::size_t done = 0; done < tiles; done += 2 * kWarp) {  // a region has no more, as a rule
    const std::size_t tile = done + 2 * lane_index();
    const auto size = [&](std::size_t k) { return k < tiles ? tile_size(message + kUnitBytes, k) : 0; };
    const auto one = static_cast<std::uint32_t>(size(tile)), both = one + static_cast<std::uint32_t>(size(tile + 1));
    const std::uint32_t upto = scan_warp(both, Sum());
    if (tile < tiles) kept.offset[first + tile] = at + length + upto - both;
    if (tile + 1 < tiles) kept.offset[first + tile + 1] = at + length + upto - both + one;
    length += from_lane(upto, kWarp - 1);
  }
  const bool lawful = is_finite(found) && bits_of(found) <= kMagnitude && !(unit >= 0 && found != unit);
  return lawful ? length : kNoRegion;
}

// Code k of a stream of codes.
static inline std::uint32_t code_at(const std::uint8_t* codes, std::size_t k, int width) {
  const std::size_t bit = k * width;
  const unsigned inside = bit % 8, bytes = (inside + width + 7) / 8;  // four at most
  return static_cast<std::uint32_t>(load_bytes(codes + bit / 8, bytes) >> inside) & ((1u << width) - 1);
}

// Eight codes of `width` bits are as many bytes: a word, where they are narrow.
static inline bool read_dense(const std::uint8_t* wire, float* y, std::size_t height, const Reading& reading) {
  const int width = wire[0];
  const bool narrow = width <= 8;
  std::uint32_t largest = 0;
  std::uint64_t words[kEightsOfThread];
  GQ_UNROLL
  for (unsigned k = 0; k < kEightsOfThread; ++k) {
    const std::size_t i = 8 * (thread_index() + k * kTileThreads), left = i < height ? height - i : 0;
    words[k] = 0;
    if (narrow && left > 0)
      words[k] = load_bytes(wire + 1 + i / 8 * width, static_cast<unsigned>(code_bytes(left < 8 ? left : 8, width)));
  }
  GQ_UNROLL
  for (unsigned part = 0; part < kEightsOfThread; ++part) {
    const std::size_t i = 8 * (thread_index() + part * kTileThreads);
    if (i >= height) continue;
    const std::size_t count = height - i;
    std::uint64_t word = words[part];
    Four<float> v[2] = {};
    GQ_UNROLL
    for (unsigned k = 0; k < 8; ++k) {
      if (k >= count) continue;
      const std::uint32_t code =
          narrow ? static_cast<std::uint32_t>(word) & ((1u << width) - 1) : code_at(wire + 1, i + k, width);
      word >>= width;
      v[k / 4].number[k % 4] = reading.value(integer_of(code, width), &largest);
    }
    put_four(y + i, v[0], count, reading.add);
    if (count > 4) put_four(y + i + 4, v[1], count - 4, reading.add);
  }
  return !reading.holds(largest);
}

static inline void clear(float* y, std::size_t height) {
  by_eights(height, [&](std::size_t i, unsigned count) {
    const Four<float> zeros[2] = {};
    store_eight(y + i, zeros, count);
  });
}

// Eight gap bytes per thread at a time; `sums` is shared memory.
static inline bool read_sparse(const std::uint8_t* wire, float* y, std::size_t height, const Reading& reading,
                               std::uint64_t* sums) {
  const int width = wire[0] - kSparse;
  const std::size_t count = load<std::uint16_t>(wire + 1), gap_bytes = load<std::uint16_t>(wire + 3);
  const std::uint8_t *const gaps = wire + kSparseHead, *const codes = gaps + gap_bytes;
  std::size_t at = 0, entry = 0;  // of the gap bytes before this round
  std::uint32_t largest = 0;
  bool bad = false;
  for (std::size_t done = 0; done < gap_bytes; done += 8 * kTileThreads) {
    const std::size_t first = done + 8 * thread_index();
    const unsigned here = first >= gap_bytes ? 0 : gap_bytes - first < 8 ? static_cast<unsigned>(gap_bytes - first) : 8;
    const std::uint64_t word = load_bytes(gaps + first, here);
    std::uint64_t steps = 0;  // entries above, values passed below
    for (unsigned k = 0; k < here; ++k) {
      const std::uint64_t gap = word >> 8 * k & 255;
      steps += gap == 255 ? gap : (std::uint64_t(1) << 32) + gap + 1;
    }
    const Scan<std::uint64_t> passed(steps, sums, Sum());
    std::size_t place = at + static_cast<std::uint32_t>(passed.before), k_th = entry + (passed.before >> 32);
    for (unsigned k = 0; k < here; ++k) {
      const unsigned gap = word >> 8 * k & 255;
      place += gap;
      if (gap == 255) continue;
      if (place >= height || k_th >= count) {
        bad = true;
        break;
      }
      y[place] =
          (reading.add ? y[place] : 0.0f) + reading.value(integer_of(code_at(codes, k_th, width), width), &largest);
      ++place;
      ++k_th;
    }
    at += static_cast<std::uint32_t>(passed.all);
    entry += passed.all >> 32;
    block_barrier();
  }
  return bad || entry != count || !reading.holds(largest);
}

}  // namespace device
}  // namespace gq
