// The random bits of eight neighbours, as one thread rounds them.
#pragma once
#include "block.hpp"
#include "gq/philox.hpp"

namespace gq {
namespace device {

constexpr unsigned kEight = kPerBlock;

struct Draws {
  std::uint32_t word[4] = {};

  Draws() = default;

  // The bits of the eight elements from a global index on, which two blocks share unless it is a multiple of eight.
  Draws(Stream stream, std::uint64_t index) {
    forget(stream.key0);
    forget(stream.key1);
    const KeySchedule keys(stream);  // twenty words
    const unsigned inside = index % kEight;
    if (inside == 0) {
      random_block(stream, keys, index / kEight, word);
      return;
    }
    std::uint32_t both[8];
    random_block(stream, keys, index / kEight, both);
    random_block(stream, keys, index / kEight + 1, both + 4);
    // Words at places that only the run knows would lie in memory.
    if (inside & 4)
      for (unsigned k = 0; k < 6; ++k) both[k] = both[k + 2];
    if (inside & 2)
      for (unsigned k = 0; k < 5; ++k) both[k] = both[k + 1];
    for (unsigned k = 0; k < 4; ++k) word[k] = inside & 1 ? both[k] >> 16 | both[k + 1] << 16 : both[k];
  }

  std::uint16_t operator[](unsigned k) const { return static_cast<std::uint16_t>(half(word, k)); }

 private:
  static std::uint32_t half(const std::uint32_t* word, unsigned k) { return word[k / 2] >> 16 * (k % 2) & 0xffff; }
};

}  // namespace device
}  // namespace gq
