// How the threads of a block write a tile of integers (integers_tile.hpp): into shared memory, then to the wire.
#pragma once
#include "integers_parts.hpp"
#include "scan.hpp"

namespace gq {
namespace device {

struct TileShared {
  std::uint32_t word[kTileWords + 1];  // the tile's bytes, and one word more to read
  std::uint32_t mask[kMaskWords];
  std::uint32_t warp[2][kTileWarps];
};

// The entries of a tile, for a thread that has one word of their mask: how many, and how many gap bytes, there are
// before that word, and where the zeros before its first entry begin.
struct Entries {
  std::uint32_t before, gaps_before, next, count, gap_bytes;

  Entries(std::uint32_t word, TileShared& shared) {
    const std::uint32_t first = 32 * thread_index();
    next = Scan<std::uint32_t>(word ? first + 32 - leading_zeros(word) : 0, shared.warp[0], Largest()).before;
    const std::uint32_t far = word ? (first + lowest_bit(word) - next) / 255 : 0;
    const std::uint32_t here = count_bits(word) << 16 | (count_bits(word) + far);
    const Scan<std::uint32_t> both(here, shared.warp[1], Sum());
    before = both.before >> 16;
    gaps_before = both.before & 0xffff;
    count = both.all >> 16;
    gap_bytes = both.all & 0xffff;
  }
};

// ORs a number of up to 25 bits into a stream of bits.
static inline void put_bits(std::uint32_t* word, std::size_t at, std::uint32_t number, unsigned width) {
  const unsigned inside = at % 32;
  atomic_or(word + at / 32, number << inside);
  if (inside + width > 32) atomic_or(word + at / 32 + 1, number >> (32 - inside));
}

// The entries of a thread's word of the mask; integer(i) says what they are.
template <class Integer>
static inline void put_entries(const Entries& entries, std::uint32_t mask, int width, Integer integer,
                               std::uint32_t* word) {
  std::size_t gap_at = 8 * (kSparseHead + entries.gaps_before), next = entries.next;
  std::size_t code_at = 8 * (kSparseHead + entries.gap_bytes) + std::size_t(entries.before) * width;
  for (; mask; mask &= mask - 1, code_at += width) {
    const std::size_t at = 32 * thread_index() + lowest_bit(mask);
    std::size_t gap = at - next;
    for (; gap >= 255; gap -= 255, gap_at += 8) put_bits(word, gap_at, 255, 8);
    put_bits(word, gap_at, static_cast<std::uint32_t>(gap), 8);
    gap_at += 8;
    put_bits(word, code_at, code_of(integer(at), width), width);
    next = at + 1;
  }
}

// A sparse tile into shared.word; `mask` is this thread's word.
template <class Integer>
static inline void put_sparse(TileShared& shared, std::uint32_t mask, int width, std::size_t nbytes, Integer integer) {
  for (std::size_t k = thread_index(); k < (nbytes + 3) / 4; k += kTileThreads) shared.word[k] = 0;
  const Entries entries(mask, shared);  // the threads meet
  if (thread_index() == 0) {
    put_bits(shared.word, 0, kSparse + width, 8);
    put_bits(shared.word, 8, entries.count, 16);
    put_bits(shared.word, 24, entries.gap_bytes, 16);
  }
  put_entries(entries, mask, width, integer, shared.word);
}

// A dense tile into shared.word: eight codes are `width` bytes.
template <class Eights>
static inline void put_eights(TileShared& shared, std::size_t height, int width, Eights eights) {
  std::uint8_t* const bytes = reinterpret_cast<std::uint8_t*>(shared.word);
  if (thread_index() == 0) bytes[0] = static_cast<std::uint8_t>(width);
  by_eights(height, [&](std::size_t i, unsigned count) {
    std::int32_t integer[8];
    eights(i, count, integer);
    std::uint8_t* out = bytes + 1 + i / 8 * width;
    std::uint64_t word = 0;
    int held = 0;
    GQ_UNROLL
    for (unsigned k = 0; k < 8; ++k) {
      if (k >= count) continue;
      word |= std::uint64_t(code_of(integer[k], width)) << held;
      held += width;
      if (width <= 8) continue;  // all eight are one word
      for (; held >= 8; held -= 8, word >>= 8) *out++ = static_cast<std::uint8_t>(word);
    }
    for (; held > 0; held -= 8, word >>= 8) *out++ = static_cast<std::uint8_t>(word);
  });
}

// Bits 0 ... 15 at the even places of a word.
static inline std::uint32_t spread(std::uint32_t bits) {
  bits = (bits | bits << 8) & 0x00ff00ff;
  bits = (bits | bits << 4) & 0x0f0f0f0f;
  bits = (bits | bits << 2) & 0x33333333;
  return (bits | bits << 1) & 0x55555555;
}

// The codes of 32 own values as a thread has them, two bits each: 0, 1 and 2 for minus one, zero and one.
static inline void put_own_codes(TileShared& shared, std::size_t height, std::uint32_t sent, std::uint32_t negative) {
  std::uint8_t* const bytes = reinterpret_cast<std::uint8_t*>(shared.word);
  if (thread_index() == 0) bytes[0] = 2;
  const std::size_t first = 32 * thread_index();
  if (first >= height) return;
  const std::uint32_t valid = height - first < 32 ? (1u << (height - first)) - 1 : ~0u;
  const std::uint32_t zero = ~sent & valid, positive = sent & ~negative & valid;
  for (unsigned k = 0; k < 8; ++k) {
    const std::uint32_t half = spread(zero >> k / 4 * 16 & 0xffff) | spread(positive >> k / 4 * 16 & 0xffff) << 1;
    bytes[1 + 8 * thread_index() + k] = static_cast<std::uint8_t>(half >> k % 4 * 8);
  }
}

// target = the first `nbytes` of shared words, in accesses of four bytes but for the ends.
static inline void copy_out(const std::uint32_t* word, std::size_t nbytes, std::uint8_t* target) {
  const std::size_t before = (0 - reinterpret_cast<std::size_t>(target)) % 4, head = before < nbytes ? before : nbytes;
  const std::size_t whole = (nbytes - head) / 4, tail = head + 4 * whole;
  const auto byte = [word](std::size_t at) { return static_cast<std::uint8_t>(word[at / 4] >> at % 4 * 8); };
  const unsigned thread = thread_index();
  for (std::size_t k = thread; k < whole; k += kTileThreads) {
    const std::size_t at = head + 4 * k;
    const std::uint64_t both = word[at / 4] | std::uint64_t(word[at / 4 + 1]) << 32;
    *reinterpret_cast<std::uint32_t*>(target + at) = static_cast<std::uint32_t>(both >> at % 4 * 8);
  }
  if (thread < head) target[thread] = byte(thread);
  if (thread < nbytes - tail) target[tail + thread] = byte(tail + thread);
}

// Writes the tile, its size and, where it is the first of its region, the unit. If it is sparse, all threads meet.
template <class Source>
static inline void write_tile(TileShared& shared, const Regions& regions, const Kept& kept, const TilePlace& place,
                              float unit, std::uint8_t* wire, const Source& source) {
  const std::size_t nbytes = kept.nbytes[place.tile], first = regions.first_tile(place.region);
  const std::uint32_t largest = kept.largest[place.tile];
  std::uint8_t* const message = wire + place.region * kUnitBytes + first * kSizeBytes + kept.offset[first];
  std::uint8_t* const tile =
      message + tiles_offset(regions.size(place.region)) + kept.offset[place.tile] - kept.offset[first];
  if (thread_index() == 0) {
    set_tile_size(message + kUnitBytes, place.number, nbytes);
    if (place.number == 0) store(message, unit);
    if (largest == 0) *tile = kZeros;
  }
  if (largest == 0) return;
  const int width = width_of(largest);
  if (nbytes < 1 + code_bytes(place.height, width))
    put_sparse(shared, source.mask(shared), largest > 1 ? width : 1, nbytes, source);
  else
    source.put_dense(shared, place.height, width);
  block_barrier();
  copy_out(shared.word, nbytes, tile);
}

}  // namespace device
}  // namespace gq
