// Random bits by position (philox.hpp), many at once, and those of a window that moves over a vector.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/kernels.hpp"
#include "gq/philox.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

static void philox(std::uint32_t word[4], std::uint32_t key0, std::uint32_t key1) {
  philox_rounds(word, KeySchedule(key0, key1));
}

static inline void random_blocks_plain(const Stream& stream, const KeySchedule& keys, std::uint64_t first,
                                       std::size_t blocks, std::uint16_t* out) {
  for (std::uint64_t block = first; block < first + blocks; ++block, out += kPerBlock) {
    std::uint32_t word[4];
    random_block(stream, keys, block, word);
    std::memcpy(out, word, sizeof word);
  }
}

#if GQ_LEVEL >= 1

constexpr std::size_t kInVector = kWidth / 2;  // blocks in a vector, one in each 64-bit lane
constexpr std::size_t kChains = 4;             // vectors at once: the rounds of one wait for each other
constexpr std::size_t kBatch = kChains * kInVector;

static inline Quads all_quads(std::uint64_t value) { return Quads{} + value; }

// The words of a block lie in the low halves of the 64-bit lanes; the high halves hold whatever the products left
// there, which no step reads. `blocks` must be a multiple of kBatch, all with the same second counter word.
static inline void random_batches(const Stream& stream, const KeySchedule& keys, std::uint64_t first,
                                  std::size_t blocks, std::uint16_t* out) {
  // In this order even_lanes and odd_lanes give whole blocks in order.
#if GQ_LEVEL == 2
  const Quads number = {0, 4, 1, 5, 2, 6, 3, 7};
#else
  const Quads number = {0, 2, 1, 3};
#endif
  const Quads multiplier0 = all_quads(kMultiplier0), multiplier1 = all_quads(kMultiplier1);
  for (std::size_t done = 0; done < blocks; done += kBatch) {
    Quads a[kChains], b[kChains], c[kChains], d[kChains];
    for (std::size_t k = 0; k < kChains; ++k) {
      a[k] = number + std::uint32_t(first + done + k * kInVector);
      b[k] = all_quads(second_counter_word(stream, first));
      c[k] = all_quads(stream.encoder);
      d[k] = all_quads(stream.step);
    }
#pragma GCC unroll 10
    for (int round = 0; round < kRounds; ++round)
      for (std::size_t k = 0; k < kChains; ++k) {
        const Quads product0 = multiply_low_halves(a[k], multiplier0),
                    product1 = multiply_low_halves(c[k], multiplier1);
        a[k] = exclusive_or(product1 >> 32, b[k], all_quads(keys.key0[round]));
        b[k] = product1;
        c[k] = exclusive_or(product0 >> 32, d[k], all_quads(keys.key1[round]));
        d[k] = product0;
      }
    for (std::size_t k = 0; k < kChains; ++k, out += kInVector * kPerBlock) {
      const Quads first_half = join_low_halves(a[k], b[k]), second_half = join_low_halves(c[k], d[k]);
      store(out, even_lanes(first_half, second_half));
      store(out + kInVector * kPerBlock / 2, odd_lanes(first_half, second_half));
    }
  }
}

#endif

static inline void random_blocks(const Stream& stream, const KeySchedule& keys, std::uint64_t first, std::size_t blocks,
                                 std::uint16_t* out) {
  std::size_t done = 0;
#if GQ_LEVEL >= 1
  if (first >> 32 == (first + blocks) >> 32) {  // the second counter word changes once in 2^35 elements
    done = blocks / kBatch * kBatch;
    random_batches(stream, keys, first, done, out);
  }
#endif
  random_blocks_plain(stream, keys, first + done, blocks - done, out + done * kPerBlock);
}

// The random bits of a window that moves forward over the elements before `end`.
class RandomWindow {
 public:
  static constexpr std::size_t kLongest = 512;  // elements asked for at once

  RandomWindow(const Stream& stream, std::uint64_t end) : stream_(stream), keys_(stream), last_(end) {}

  // The bits of the elements [index, index + count), count <= kLongest.
  const std::uint16_t* at(std::uint64_t index, std::size_t count) {
    if (index < begin_ || index + count > end_) move_to(index / kPerBlock * kPerBlock);
    return bits_ + (index - begin_);
  }

 private:
  static constexpr std::size_t kCapacity = 2048;
  static constexpr std::size_t kAtOnce = 256;  // elements: whole batches

  // Begins the window at `index`, keeps what it knows from there on and fills the rest.
  void move_to(std::uint64_t index) {
    const std::size_t kept = index >= begin_ && index < end_ ? end_ - index : 0;
    if (kept > 0) std::memmove(bits_, bits_ + (index - begin_), kept * sizeof *bits_);
    begin_ = index;
    end_ = begin_ + kept;
    const std::uint64_t needed = (last_ - end_ + kAtOnce - 1) / kAtOnce * kAtOnce;
    const std::size_t room = (kCapacity - kept) / kAtOnce * kAtOnce;
    const std::size_t fresh = needed < room ? needed : room;
    random_blocks(stream_, keys_, end_ / kPerBlock, fresh / kPerBlock, bits_ + kept);
    end_ += fresh;
  }

  Stream stream_;
  KeySchedule keys_;
  std::uint64_t begin_ = 0, end_ = 0, last_;
  alignas(64) std::uint16_t bits_[kCapacity];
};

static void random16(const Stream& stream, std::uint64_t first, std::size_t count, std::uint16_t* out) {
  RandomWindow window(stream, first + count);
  for (std::size_t done = 0; done < count;) {
    const std::size_t part = count - done < window.kLongest ? count - done : window.kLongest;
    std::memcpy(out + done, window.at(first + done, part), part * sizeof *out);
    done += part;
  }
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
