// What tiles of integers are made of: own values, quantized, or sums.
#pragma once
#include "draws.hpp"
#include "gq/integers_sending.hpp"
#include "integers_writing.hpp"

namespace gq {
namespace device {

// Which of eight values v = x + e, with a global index, are sent (bit k), and their errors; false if one is not finite.
static inline bool quantize_eight(const Sending& sending, const Stream& stream, std::uint64_t index, const Eight& v,
                                  Four<float> error[2], unsigned* sent) {
  Draws draws;
  if (sending.ternary) draws = Draws(stream, index);
  bool finite = true;
  *sent = 0;
  GQ_UNROLL
  for (unsigned k = 0; k < 8; ++k) {
    const bool is_sent = sending(v.number[k], draws[k]);
    *sent |= unsigned(is_sent) << k;
    error[k / 4].number[k % 4] = sending.error(v.number[k], is_sent);
    finite &= is_finite(v.number[k]);
  }
  return finite;
}

// The length of a tile whose mask of entries lies in shared memory.
static inline void measure_tile(TileShared& shared, const TilePlace& place, std::uint32_t largest, const Kept& kept) {
  const Entries entries(shared.mask[thread_index()], shared);
  if (thread_index() > 0) return;
  const TileForm form = tile_form(place.height, largest, entries.count, entries.gap_bytes);
  kept.nbytes[place.tile] = static_cast<std::uint32_t>(form.nbytes);
  kept.largest[place.tile] = entries.count > 0 ? largest : 0;
}

// Own values, as two masks.
struct Signs {
  const std::uint32_t *sent, *negative;

  std::uint32_t mask(TileShared&) const { return sent[thread_index()]; }
  std::int32_t operator()(std::size_t at) const { return negative[at / 32] >> at % 32 & 1 ? -1 : 1; }

  void put_dense(TileShared& shared, std::size_t height, int) const {
    put_own_codes(shared, height, sent[thread_index()], negative[thread_index()]);
  }
};

// Integers in float32.
struct Sums {
  const float* m;
  std::size_t height;

  // The mask of those that are not zero; the largest bits of the magnitudes that this thread has seen.
  std::uint32_t find(TileShared& shared) const {
    std::uint32_t largest = 0;
    if (height < kTileValues) {
      shared.mask[thread_index()] = 0;
      block_barrier();
    }
    by_eights(height, [&](std::size_t i, unsigned count) {
      const Eight v(m + i, nullptr, count);
      unsigned bits = 0;
      GQ_UNROLL
      for (unsigned k = 0; k < 8; ++k) {
        if (v.number[k] != 0) bits |= 1u << k;
        largest = magnitude(v.number[k]) > largest ? magnitude(v.number[k]) : largest;
      }
      reinterpret_cast<std::uint8_t*>(shared.mask)[i / 8] = static_cast<std::uint8_t>(bits);
    });
    return largest;
  }

  std::uint32_t mask(TileShared& shared) const {
    find(shared);
    block_barrier();
    return shared.mask[thread_index()];
  }

  std::int32_t operator()(std::size_t at) const { return static_cast<std::int32_t>(m[at]); }

  void put_dense(TileShared& shared, std::size_t n, int width) const {
    put_eights(shared, n, width, [this](std::size_t i, unsigned count, std::int32_t integer[8]) {
      const Eight v(m + i, nullptr, count);
      GQ_UNROLL
      for (unsigned k = 0; k < 8; ++k) integer[k] = static_cast<std::int32_t>(v.number[k]);
    });
  }
};

}  // namespace device
}  // namespace gq
