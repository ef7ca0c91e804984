// Random bits by position: Philox4x32-10 (Salmon et al. 2011) of the element's global index and the stream.
//
// One Philox block serves eight elements, 16 bits each. Block b has the counter words low32(b), bits 32..47 of b with
// the hop above them, encoder, step. Element i takes half i & 1 (low first) of word (i & 7) >> 1 of block i >> 3: the
// 16 bytes of a block in little-endian order are the bits of its elements in order.
#pragma once
#include "gq/kernels.hpp"
#include "gq/standard.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr int kRounds = 10;
constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr std::size_t kPerBlock = 8;  // elements served by a block

// The keys of all rounds, each in as many bits as its vectors have lanes of.
struct KeySchedule {
  std::uint64_t key0[kRounds], key1[kRounds];

  KeySchedule(std::uint32_t first0, std::uint32_t first1) {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      key0[round] = std::uint32_t(first0 + round * kWeyl0);
      key1[round] = std::uint32_t(first1 + round * kWeyl1);
    }
  }

  explicit KeySchedule(const Stream& stream) : KeySchedule(stream.key0, stream.key1) {}
};

// word[0..3]: the counter before, the random bits after.
static inline void philox_rounds(std::uint32_t word[4], const KeySchedule& keys) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t(kMultiplier0) * word[0];
    const std::uint64_t product1 = std::uint64_t(kMultiplier1) * word[2];
    word[0] = std::uint32_t(product1 >> 32) ^ word[1] ^ std::uint32_t(keys.key0[round]);
    word[1] = std::uint32_t(product1);
    word[2] = std::uint32_t(product0 >> 32) ^ word[3] ^ std::uint32_t(keys.key1[round]);
    word[3] = std::uint32_t(product0);
  }
}

static inline std::uint32_t second_counter_word(const Stream& stream, std::uint64_t block) {
  return (std::uint32_t(block >> 32) & 0xffff) | stream.hop << 16;
}

// The random bits of one block.
static inline void random_block(const Stream& stream, const KeySchedule& keys, std::uint64_t block,
                                std::uint32_t word[4]) {
  word[0] = std::uint32_t(block);
  word[1] = second_counter_word(stream, block);
  word[2] = stream.encoder;
  word[3] = stream.step;
  philox_rounds(word, keys);
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
