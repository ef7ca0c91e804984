// Linear codecs on a GPU: where tiles lie in a span of regions, and which values of one a thread has.
//
// A span's messages follow each other; before tile t of region j lie the heads of j + 1 regions and the tiles before t.
#pragma once
#include "block.hpp"
#include "fours.hpp"
#include "gq/integers_wire.hpp"

namespace gq {
namespace device {

constexpr unsigned kTileThreads = 128, kTileWarps = kTileThreads / kWarp;
constexpr unsigned kMaskWords = kTileValues / 32;  // a bit for each value, a word for each thread
static_assert(kMaskWords == kTileThreads, "a word for each thread");
constexpr unsigned kTileWords = (1 + kTileValues * kWidest / 8 + 3) / 4;  // of the bytes of the longest dense tile

// The table of a span's regions: first element and first tile of each, and of what would follow the last.
struct Regions {
  const std::uint64_t* table;
  std::uint64_t count;

  std::size_t begin(std::size_t region) const { return table[2 * region]; }
  std::size_t size(std::size_t region) const { return begin(region + 1) - begin(region); }
  std::size_t first_tile(std::size_t region) const { return table[2 * region + 1]; }
  std::size_t tiles() const { return first_tile(count); }
};

// What is kept of a span's tiles from one launch to the next; integers.py says how many bytes of scratch it takes.
struct Kept {
  std::uint64_t* offset;  // where each tile begins: in the wire when decoding, else among the tiles
  std::uint32_t *nbytes, *largest;
  std::uint32_t* signs;  // by tile: a mask of the own values that are sent, and one of those that are negative

  Kept(std::uint64_t* scratch, std::size_t tiles) : offset(scratch) {
    nbytes = reinterpret_cast<std::uint32_t*>(offset + tiles);
    largest = nbytes + tiles;
    signs = largest + tiles;
  }

  double* sums() const { return reinterpret_cast<double*>(offset); }
  std::uint32_t* sent(std::size_t tile) const { return signs + 2 * kMaskWords * tile; }
  std::uint32_t* negative(std::size_t tile) const { return sent(tile) + kMaskWords; }
};

// The tile of a block.
struct TilePlace {
  std::size_t tile, region, number;  // in the span; its region, and where in that
  std::size_t begin, height;         // relative to the span

  explicit TilePlace(const Regions& regions) : tile(block_index()), region(0) {
    for (std::size_t above = regions.count; above - region > 1;) {
      const std::size_t middle = (region + above) / 2;
      (regions.first_tile(middle) <= tile ? region : above) = middle;
    }
    number = tile - regions.first_tile(region);
    begin = regions.begin(region) + number * kTileValues;
    const std::size_t left = regions.begin(region + 1) - begin;
    height = left < kTileValues ? left : kTileValues;
  }
};

// v = x + e of up to eight neighbours; the others are zero.
struct Eight {
  float number[8];

  Eight(const float* x, const float* e, std::size_t count) {
    const Four<float> low = load_sum(x, e, count);
    const Four<float> high = count > 4 ? load_sum(x + 4, e ? e + 4 : e, count - 4) : Four<float>{};
    GQ_UNROLL
    for (unsigned k = 0; k < 8; ++k) number[k] = k < 4 ? low.number[k] : high.number[k - 4];
  }
};

static inline void store_eight(float* target, const Four<float> half[2], std::size_t count) {
  store_four(target, half[0], count);
  if (count > 4) store_four(target + 4, half[1], count - 4);
}

constexpr unsigned kEightsOfThread = kTileValues / (8 * kTileThreads);

// each(i, count) for the neighbours i ... i + count - 1 <= i + 7 of a tile that this thread has.
template <class Each>
static inline void by_eights(std::size_t height, Each each) {
  for (std::size_t i = 8 * thread_index(); i < height; i += 8 * kTileThreads)
    each(i, height - i < 8 ? static_cast<unsigned>(height - i) : 8);
}

}  // namespace device
}  // namespace gq
