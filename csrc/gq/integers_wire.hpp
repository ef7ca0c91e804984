// A region of integers on the wire: its unit (float32), the sizes of all tiles in bytes (uint16), which say where each
// begins, and the tiles (integers_tile.hpp).
#pragma once
#include "gq/standard.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

constexpr std::size_t kTileValues = 4096;
constexpr std::uint32_t kMostTerms = (1u << 24) - 1;  // integers are exact in float32 up to here
constexpr std::size_t kUnitBytes = 4, kSizeBytes = 2;
constexpr int kWidest = 25;                        // bits of a code of kMostTerms
constexpr std::uint8_t kZeros = 1, kSparse = 128;  // a tile's first byte; a dense one's is its width
constexpr std::size_t kSparseHead = 5;             // with the first byte

// Bits of the codes of integers up to `largest` > 0: code c stands for c - middle(width).
inline int width_of(std::uint32_t largest) {
  int width = 2;
  while ((1u << (width - 1)) - 1 < largest) ++width;
  return width;
}

inline std::int32_t middle(int width) { return (1 << (width - 1)) - 1; }

inline std::uint32_t code_of(std::int32_t integer, int width) {
  return width == 1 ? integer > 0 : static_cast<std::uint32_t>(integer + middle(width));
}

inline std::int32_t integer_of(std::uint32_t code, int width) {
  const std::int32_t number = static_cast<std::int32_t>(code);
  return width == 1 ? 2 * number - 1 : number - middle(width);
}

inline std::size_t code_bytes(std::size_t count, int width) { return (count * width + 7) / 8; }

inline std::size_t tile_count(std::size_t n) { return (n + kTileValues - 1) / kTileValues; }

// Where the tiles of a region of n values begin.
inline std::size_t tiles_offset(std::size_t n) { return kUnitBytes + kSizeBytes * tile_count(n); }

inline std::size_t tile_size(const std::uint8_t* sizes, std::size_t tile) {
  return load<std::uint16_t>(sizes + kSizeBytes * tile);
}

inline void set_tile_size(std::uint8_t* sizes, std::size_t tile, std::size_t nbytes) {
  store(sizes + kSizeBytes * tile, static_cast<std::uint16_t>(nbytes));
}

// The most bytes that the tiles of n integers up to `terms` take.
inline std::size_t tiles_bound(std::size_t n, std::uint32_t terms) {
  const std::size_t whole = n / kTileValues, rest = n % kTileValues;
  const int width = width_of(terms);
  return whole * (1 + code_bytes(kTileValues, width)) + (rest ? 1 + code_bytes(rest, width) : 0);
}

// How a tile is written: zeros, with codes of a width for all, or sparse.
struct TileForm {
  bool sparse;
  int width;
  std::size_t nbytes;
};

// The shortest form of `height` integers up to `largest`, of which `count` are not zero and have so many gap bytes.
inline TileForm tile_form(std::size_t height, std::uint32_t largest, std::size_t count, std::size_t gap_bytes) {
  if (count == 0) return {false, kZeros, 1};
  const int width = width_of(largest), narrow = largest > 1 ? width : 1;
  const std::size_t dense = 1 + code_bytes(height, width);
  const std::size_t sparse = kSparseHead + gap_bytes + code_bytes(count, narrow);
  if (sparse < dense) return {true, narrow, sparse};
  return {false, width, dense};
}

// What integers on the wire may be: at most `terms`, and finite times the unit.
struct Limits {
  std::uint32_t terms;
  float unit;

  bool hold(std::uint32_t largest) const { return largest <= terms && is_finite(static_cast<float>(largest) * unit); }
};

// Do `nbytes` bytes begin as a tile of `height` values that is so long?
inline bool is_tile(const std::uint8_t* wire, std::size_t nbytes, std::size_t height) {
  if (nbytes < 1) return false;
  if (wire[0] <= kSparse) {
    const bool dense = wire[0] >= 2 && wire[0] <= kWidest;
    return (dense || wire[0] == kZeros) && nbytes == 1 + (dense ? code_bytes(height, wire[0]) : 0);
  }
  if (wire[0] > kSparse + kWidest || nbytes < kSparseHead) return false;
  const std::size_t count = load<std::uint16_t>(wire + 1), gaps = load<std::uint16_t>(wire + 3);
  return nbytes == kSparseHead + gaps + code_bytes(count, wire[0] - kSparse);
}

}  // namespace
}  // namespace gq
