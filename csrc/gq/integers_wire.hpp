// The sizes of tiles of integers: see integers_tile.hpp.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/wire.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

constexpr std::size_t kTileValues = 4096;
constexpr std::uint32_t kMostTerms = (1u << 24) - 1;  // integers are exact in float32 up to here
constexpr std::size_t kUnitBytes = 4;                 // the float32 before a region's tiles
constexpr int kWidest = 25;                           // bits of a code of kMostTerms
constexpr std::uint8_t kZeros = 1, kSparse = 128;     // a tile's first byte; a dense one's is its width
constexpr std::size_t kSparseHead = 5;                // with the first byte

// Bits of the codes of integers up to `largest` > 0: code c stands for c - middle(width).
inline int width_of(std::uint32_t largest) {
  int width = 2;
  while ((1u << (width - 1)) - 1 < largest) ++width;
  return width;
}

inline std::int32_t middle(int width) { return (1 << (width - 1)) - 1; }

inline std::size_t code_bytes(std::size_t count, int width) { return (count * width + 7) / 8; }

// The most bytes that the tiles of n integers up to `terms` take.
inline std::size_t tiles_bound(std::size_t n, std::uint32_t terms) {
  const std::size_t whole = n / kTileValues, rest = n % kTileValues;
  const int width = width_of(terms);
  return whole * (1 + code_bytes(kTileValues, width)) + (rest ? 1 + code_bytes(rest, width) : 0);
}

// Bytes of the tile of `height` values at the start of `nbytes` bytes; 0 if there is none.
inline std::size_t tile_bytes(const std::uint8_t* wire, std::size_t nbytes, std::size_t height) {
  if (nbytes < 1) return 0;
  std::size_t needed = 1;
  if (wire[0] > kSparse) {
    if (wire[0] > kSparse + kWidest || nbytes < kSparseHead) return 0;
    const std::size_t count = load<std::uint16_t>(wire + 1), gaps = load<std::uint16_t>(wire + 3);
    needed = kSparseHead + gaps + code_bytes(count, wire[0] - kSparse);
  } else if (wire[0] != kZeros) {
    if (wire[0] < 2 || wire[0] > kWidest) return 0;
    needed = 1 + code_bytes(height, wire[0]);
  }
  return needed <= nbytes ? needed : 0;
}

}  // namespace
}  // namespace gq
