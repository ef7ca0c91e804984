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

  float value(std::int32_t integer, bool* bad) const {
    *bad |= !Limits{terms, unit}.hold(static_cast<std::uint32_t>(integer < 0 ? -integer : integer));
    return static_cast<float>(integer) * unit * scale;
  }
};

// Code k of a stream of codes.
static inline std::uint32_t code_at(const std::uint8_t* codes, std::size_t k, int width) {
  const std::size_t bit = k * width;
  const unsigned inside = bit % 8, bytes = (inside + width + 7) / 8;  // four at most
  return static_cast<std::uint32_t>(load_bytes(codes + bit / 8, bytes) >> inside) & ((1u << width) - 1);
}

static inline bool read_dense(const std::uint8_t* wire, float* y, std::size_t height, const Reading& reading) {
  const int width = wire[0];
  bool bad = false;
  by_eights(height, [&](std::size_t i, unsigned count) {
    const std::uint8_t* in = wire + 1 + i / 8 * width;
    Four<float> v[2] = {};
    std::uint64_t word = 0;
    int held = 0;
    GQ_UNROLL
    for (unsigned k = 0; k < 8; ++k) {
      if (k >= count) continue;
      for (; held < width; held += 8) word |= std::uint64_t(*in++) << held;
      v[k / 4].number[k % 4] = reading.value(integer_of(word & ((1u << width) - 1), width), &bad);
      held -= width;
      word >>= width;
    }
    put_four(y + i, v[0], count, reading.add);
    if (count > 4) put_four(y + i + 4, v[1], count - 4, reading.add);
  });
  return bad;
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
      y[place] = (reading.add ? y[place] : 0.0f) + reading.value(integer_of(code_at(codes, k_th, width), width), &bad);
      ++place;
      ++k_th;
    }
    at += static_cast<std::uint32_t>(passed.all);
    entry += passed.all >> 32;
    block_barrier();
  }
  return bad || entry != count;
}

}  // namespace device
}  // namespace gq
