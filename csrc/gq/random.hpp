// Random bits by position: Philox4x32-10 (Salmon et al. 2011) of the element's global index and the stream.
//
// One Philox block serves eight elements, 16 bits each. Block b has the counter words low32(b), bits 32..47 of b with
// the hop above them, encoder, step. Element i takes half i & 1 (low first) of word (i & 7) >> 1 of block i >> 3: the
// 16 bytes of a block in little-endian order are the bits of its elements in order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/kernels.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr int kRounds = 10;
constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr std::size_t kPerBlock = 8;  // elements served by a block

// word[0..3]: the counter before, the random bits after.
static inline void philox(std::uint32_t word[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t(kMultiplier0) * word[0];
    const std::uint64_t product1 = std::uint64_t(kMultiplier1) * word[2];
    word[0] = std::uint32_t(product1 >> 32) ^ word[1] ^ key0;
    word[1] = std::uint32_t(product1);
    word[2] = std::uint32_t(product0 >> 32) ^ word[3] ^ key1;
    word[3] = std::uint32_t(product0);
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
}

static inline std::uint32_t second_counter_word(const Stream& stream, std::uint64_t block) {
  return (std::uint32_t(block >> 32) & 0xffff) | stream.hop << 16;
}

static inline void random_blocks_plain(const Stream& stream, std::uint64_t first, std::size_t blocks,
                                       std::uint16_t* out) {
  for (std::uint64_t block = first; block < first + blocks; ++block, out += kPerBlock) {
    std::uint32_t word[4] = {std::uint32_t(block), second_counter_word(stream, block), stream.encoder, stream.step};
    philox(word, stream.key0, stream.key1);
    std::memcpy(out, word, sizeof word);
  }
}

#if GQ_LEVEL >= 1

constexpr std::size_t kBatch = kWidth / 2;  // blocks in a vector, one in each 64-bit lane

static inline Quads all_quads(std::uint64_t value) { return Quads{} + value; }

// The words of a block lie in the low halves of the 64-bit lanes; the high halves hold whatever the products left
// there, which no step reads. `blocks` must be a multiple of kBatch, all with the same second counter word.
static inline void random_batches(const Stream& stream, std::uint64_t first, std::size_t blocks, std::uint16_t* out) {
  // In this order even_lanes and odd_lanes give whole blocks in order.
#if GQ_LEVEL == 2
  const Quads number = {0, 4, 1, 5, 2, 6, 3, 7};
#else
  const Quads number = {0, 2, 1, 3};
#endif
  const Quads word1 = all_quads(second_counter_word(stream, first));
  const Quads word2 = all_quads(stream.encoder), word3 = all_quads(stream.step);
  const Quads multiplier0 = all_quads(kMultiplier0), multiplier1 = all_quads(kMultiplier1);
  for (std::size_t done = 0; done < blocks; done += kBatch, out += kBatch * kPerBlock) {
    Quads a = number + std::uint32_t(first + done), b = word1, c = word2, d = word3;
    std::uint32_t key0 = stream.key0, key1 = stream.key1;
#pragma GCC unroll 10
    for (int round = 0; round < kRounds; ++round) {
      const Quads product0 = multiply_low_halves(a, multiplier0), product1 = multiply_low_halves(c, multiplier1);
      a = exclusive_or(product1 >> 32, b, all_quads(key0));
      b = product1;
      c = exclusive_or(product0 >> 32, d, all_quads(key1));
      d = product0;
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    const Quads first_half = join_low_halves(a, b), second_half = join_low_halves(c, d);
    store(out, even_lanes(first_half, second_half));
    store(out + kBatch * kPerBlock / 2, odd_lanes(first_half, second_half));
  }
}

#endif

static inline void random_blocks(const Stream& stream, std::uint64_t first, std::size_t blocks, std::uint16_t* out) {
  std::size_t done = 0;
#if GQ_LEVEL >= 1
  if (first >> 32 == (first + blocks) >> 32) {  // the second counter word changes once in 2^35 elements
    done = blocks / kBatch * kBatch;
    random_batches(stream, first, done, out);
  }
#endif
  random_blocks_plain(stream, first + done, blocks - done, out + done * kPerBlock);
}

// The random bits of a window of elements that moves forward.
class RandomWindow {
 public:
  static constexpr std::size_t kLongest = 1024;  // elements asked for at once

  explicit RandomWindow(const Stream& stream) : stream_(stream) {}

  // The bits of the elements [index, index + count), count <= kLongest.
  const std::uint16_t* at(std::uint64_t index, std::size_t count) {
    if (index < begin_ || index + count > end_) {
      const std::size_t wanted = (count > kShortest ? count : kShortest) + index % kPerBlock;
      const std::size_t blocks = (wanted + 63) / 64 * 8;
      begin_ = index / kPerBlock * kPerBlock;
      end_ = begin_ + blocks * kPerBlock;
      random_blocks(stream_, begin_ / kPerBlock, blocks, bits_);
    }
    return bits_ + (index - begin_);
  }

 private:
  static constexpr std::size_t kShortest = 256;  // so that short buckets share a batch of blocks

  Stream stream_;
  std::uint64_t begin_ = 0, end_ = 0;
  alignas(64) std::uint16_t bits_[kLongest + 128];
};

static void random16(const Stream& stream, std::uint64_t first, std::size_t count, std::uint16_t* out) {
  RandomWindow window(stream);
  for (std::size_t done = 0; done < count;) {
    const std::size_t part = count - done < window.kLongest ? count - done : window.kLongest;
    std::memcpy(out + done, window.at(first + done, part), part * sizeof *out);
    done += part;
  }
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
