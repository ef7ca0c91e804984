// Linear codecs (integers_wire.hpp says what is sent), a span of regions at a time: a block of 128 threads per tile.
//
// Encoding is three launches: how long each tile is, where it begins, and the bytes. Of own values the first leaves two
// bits each for the third, which so reads neither them nor random bits again. Decoding is two: one warp adds up the
// sizes that the message states, then each block checks and reads its tile.
#include "integers_reading.hpp"
#include "integers_values.hpp"
#include "integers_writing.hpp"
#include "team.hpp"

namespace gq {
namespace device {

constexpr unsigned kOwnTiles = 8;  // of each thread of a scan

// Where a message is read: this region begins there, and the last one had the usual length.
struct Walk {
  std::uint64_t at, region, usual, bad;

  void pass(std::uint64_t length) {
    bad |= length == kNoRegion;
    at += length;
    usual = length;
    ++region;
  }
};

}  // namespace device
}  // namespace gq

using namespace gq;
using namespace gq::device;

// Of each tile the bits of max |v| and, if asked for, the sum of v * v.
GQ_KERNEL integers_measure_tiles(const float* x, const float* e, const std::uint64_t* table, std::uint64_t count,
                                 int squares, std::uint64_t* scratch) {
  GQ_SHARED Shared shared;
  const Regions regions = {table, count};
  const TilePlace place(regions);
  const Kept kept(scratch, regions.tiles());
  Team team(shared, 1);
  team.stage(x + place.begin, e ? e + place.begin : e, place.height);
  const std::uint32_t largest = team.largest(largest_staged(team, place.height));
  const double sum = squares ? tile_squares(team, place.height) : 0.0;
  if (!team.leads()) return;
  kept.largest[place.tile] = largest;
  kept.sums()[place.tile] = sum;
}

// The same of each region: a thread adds its tiles in order.
GQ_KERNEL integers_measure_regions(const std::uint64_t* table, std::uint64_t count, std::uint64_t* scratch,
                                   std::uint32_t* largest, double* totals) {
  const Regions regions = {table, count};
  const Kept kept(scratch, regions.tiles());
  const std::size_t region = std::size_t(block_index()) * threads_per_block() + thread_index();
  if (region >= count) return;
  std::uint32_t found = 0;
  double total = 0.0;
  for (std::size_t tile = regions.first_tile(region); tile < regions.first_tile(region + 1); ++tile) {
    found = kept.largest[tile] > found ? kept.largest[tile] : found;
    total += kept.sums()[tile];
  }
  largest[region] = found;
  totals[region] = total;
}

// The unit of each region: its largest magnitude or, unless clip is 0, clip root mean squares if that is less.
GQ_KERNEL integers_units(const std::uint32_t* largest, const double* totals, const std::uint64_t* table,
                         std::uint64_t count, double clip, float* units, std::uint32_t* status) {
  const Regions regions = {table, count};
  const std::size_t region = std::size_t(block_index()) * threads_per_block() + thread_index();
  if (region >= count) return;
  const float most = float_of(largest[region]);
  const double mean = totals[region] / static_cast<double>(regions.size(region));
  const float clipped = static_cast<float>(clip * square_root(mean));
  units[region] = clip != 0.0 && clipped < most ? clipped : most;
  report(!is_finite(most), kNotFinite, status);
}

// m = x + e as multiples of the unit, r the errors; m may be x. A value that is not finite stays.
GQ_KERNEL integers_quantize(const float* x, const float* e, float* r, float* m, std::uint64_t n, float unit,
                            int ternary, std::uint64_t first, std::uint32_t key0, std::uint32_t key1, std::uint32_t hop,
                            std::uint32_t encoder, std::uint32_t step, std::uint32_t* status) {
  const Stream stream = {key0, key1, hop, encoder, step};
  const Sending sending(Quantizer{unit, ternary != 0});
  const std::size_t stride = 8 * std::size_t(blocks_per_grid()) * threads_per_block();
  bool finite = true;
  for (std::size_t i = 8 * (std::size_t(block_index()) * threads_per_block() + thread_index()); i < n; i += stride) {
    const Eight v(x + i, e ? e + i : e, n - i);
    Four<float> error[2], multiple[2];
    unsigned sent;
    finite &= quantize_eight(sending, stream, first + i, v, error, &sent);
    GQ_UNROLL
    for (unsigned k = 0; k < 8; ++k)
      multiple[k / 4].number[k % 4] = multiple_of(v.number[k], sent >> k & 1, is_finite(v.number[k]));
    store_eight(m + i, multiple, n - i);
    if (r) store_eight(r + i, error, n - i);
  }
  report(!finite, kNotFinite, status);
}

// Own values to masks and errors, and how long each tile will be. `units`, if given, has one unit for each region.
GQ_KERNEL integers_quantize_tiles(const float* x, const float* e, float* r, float unit, const float* units, int ternary,
                                  const std::uint64_t* table, std::uint64_t count, std::uint64_t start,
                                  std::uint32_t key0, std::uint32_t key1, std::uint32_t hop, std::uint32_t encoder,
                                  std::uint32_t step, std::uint64_t* scratch, std::uint32_t* status) {
  GQ_SHARED TileShared shared;
  const Regions regions = {table, count};
  const TilePlace place(regions);
  const Kept kept(scratch, regions.tiles());
  const Stream stream = {key0, key1, hop, encoder, step};
  const Sending sending(Quantizer{units ? units[place.region] : unit, ternary != 0});
  std::uint8_t* const sent_bytes = reinterpret_cast<std::uint8_t*>(kept.sent(place.tile));
  std::uint8_t* const negative_bytes = reinterpret_cast<std::uint8_t*>(kept.negative(place.tile));
  bool finite = true;
  by_eights(kTileValues, [&](std::size_t i, unsigned) {
    unsigned sent = 0, negative = 0;
    if (i < place.height) {
      const std::size_t at = place.begin + i, left = place.height - i;
      const Eight v(x + at, e ? e + at : e, left);
      Four<float> error[2];
      finite &= quantize_eight(sending, stream, start + at, v, error, &sent);
      GQ_UNROLL
      for (unsigned k = 0; k < 8; ++k) negative |= bits_of(v.number[k]) >> 31 << k;
      if (r) store_eight(r + at, error, left);
    }
    sent_bytes[i / 8] = reinterpret_cast<std::uint8_t*>(shared.mask)[i / 8] = static_cast<std::uint8_t>(sent);
    negative_bytes[i / 8] = static_cast<std::uint8_t>(negative);
  });
  report(!finite, kNotFinite, status);
  block_barrier();
  measure_tile(shared, place, 1, kept);
}

// How long each tile of integers will be. One with integers that may not be is written as zeros.
GQ_KERNEL integers_size_tiles(const float* m, float unit, std::uint32_t terms, const std::uint64_t* table,
                              std::uint64_t count, std::uint64_t* scratch, std::uint32_t* status) {
  GQ_SHARED TileShared shared;
  GQ_SHARED std::uint32_t warp[kTileWarps];
  const Regions regions = {table, count};
  const TilePlace place(regions);
  const Sums sums = {m + place.begin, place.height};
  const float largest = float_of(Scan<std::uint32_t>(sums.find(shared), warp, Largest()).all);
  const bool too_many = !(largest <= static_cast<float>(terms)), infinite = !is_finite(largest * unit);
  if (too_many || infinite) {
    shared.mask[thread_index()] = 0;
    if (thread_index() == 0) atomic_or(status, too_many ? kMalformed : kNotFinite);
  }
  const std::uint32_t most = too_many || infinite ? 0 : static_cast<std::uint32_t>(largest);
  measure_tile(shared, place, most, Kept(scratch, regions.tiles()));
}

// Where each tile begins among all, and how long the message is: one block of 1024 threads.
GQ_KERNEL GQ_THREADS(kScanThreads)
    integers_scan(const std::uint64_t* table, std::uint64_t count, std::uint64_t* scratch, std::uint64_t* length) {
  GQ_SHARED std::uint64_t warp[kScanThreads / kWarp];
  const Regions regions = {table, count};
  const std::size_t tiles = regions.tiles();
  const Kept kept(scratch, tiles);
  std::uint64_t nbytes = 0;
  for (std::size_t done = 0; done < tiles; done += kOwnTiles * kScanThreads) {
    const std::size_t tile = done + kOwnTiles * thread_index();
    Four<std::uint32_t> size[kOwnTiles / 4];
    std::uint32_t own = 0;
    GQ_UNROLL
    for (unsigned k = 0; k < kOwnTiles; ++k) {
      if (k % 4 == 0) size[k / 4] = four_of(kept.nbytes, tile + k, tiles);
      own += size[k / 4].number[k % 4];
    }
    const Scan<std::uint64_t> sizes(own, warp, Sum());
    std::uint64_t offset = nbytes + sizes.before;
    GQ_UNROLL
    for (unsigned k = 0; k < kOwnTiles; k += 4) {
      Four<std::uint64_t> begins;
      GQ_UNROLL
      for (unsigned j = 0; j < 4; ++j) {
        begins.number[j] = offset;
        offset += size[k / 4].number[j];
      }
      if (tile + k < tiles) store_four(kept.offset + tile + k, begins, tiles - tile - k);
    }
    nbytes += sizes.all;
    block_barrier();
  }
  if (thread_index() == 0) *length = tiles > 0 ? count * kUnitBytes + tiles * kSizeBytes + nbytes : 0;
}

GQ_KERNEL integers_write_own(std::uint8_t* wire, float unit, const float* units, const std::uint64_t* table,
                             std::uint64_t count, std::uint64_t* scratch) {
  GQ_SHARED TileShared shared;
  const Regions regions = {table, count};
  const TilePlace place(regions);
  const Kept kept(scratch, regions.tiles());
  const Signs signs = {kept.sent(place.tile), kept.negative(place.tile)};
  write_tile(shared, regions, kept, place, units ? units[place.region] : unit, wire, signs);
}

GQ_KERNEL integers_write(const float* m, std::uint8_t* wire, float unit, const std::uint64_t* table,
                         std::uint64_t count, std::uint64_t* scratch) {
  GQ_SHARED TileShared shared;
  const Regions regions = {table, count};
  const TilePlace place(regions);
  const Sums sums = {m + place.begin, place.height};
  write_tile(shared, regions, Kept(scratch, regions.tiles()), place, unit, wire, sums);
}

// Where each tile of a message begins, if its regions have lawful units and end where it does: one block of 1024
// threads. Each warp reads a region, at the place where it begins if those before it are as long as the last one that
// is known. Where that is wrong at once, one warp goes on alone for a while, from region to region.
GQ_KERNEL GQ_THREADS(kScanThreads)
    integers_find(const std::uint8_t* wire, std::uint64_t nbytes, float unit, const std::uint64_t* table,
                  std::uint64_t count, std::uint64_t* scratch, std::uint32_t* status) {
  constexpr unsigned kTogether = kScanThreads / kWarp, kAlone = 64;
  GQ_SHARED std::uint64_t length[kTogether];  // of the regions, kNoRegion where there is none
  GQ_SHARED Walk shared;
  const Regions regions = {table, count};
  const Kept kept(scratch, regions.tiles());
  const unsigned warp = thread_index() / kWarp;
  Walk walk = {0, regions.tiles() > 0 ? 0 : count, 0, 0};
  while (walk.region < count) {
    const std::uint64_t place = walk.at + warp * walk.usual;
    const std::uint64_t own = walk.region + warp < count
                                  ? read_sizes(wire, nbytes, place, unit, regions, walk.region + warp, kept)
                                  : kNoRegion;
    if (lane_index() == 0) length[warp] = own;
    block_barrier();
    if (warp == 0) {
      const std::uint64_t theirs = length[lane_index()];
      const std::uint32_t alike = device::ballot(theirs == walk.usual), known = count_bits(alike & ~(alike + 1));
      walk.at += known * walk.usual;
      walk.region += known;
      if (known < kTogether && walk.region < count) walk.pass(from_lane(theirs, known));
      for (unsigned k = 0; known == 0 && k < kAlone && walk.region < count; ++k)
        walk.pass(read_sizes(wire, nbytes, walk.at, unit, regions, walk.region, kept));
      if (walk.bad) walk.region = count;
      if (lane_index() == 0) shared = walk;
    }
    block_barrier();
    walk = shared;
    block_barrier();
  }
  if (thread_index() == 0) report(walk.bad || walk.at != nbytes, kMalformed, status);
}

// y = scale * the values, or y += them, as integers if `whole`, unless integers_find found a fault.
GQ_KERNEL integers_decode(const std::uint8_t* wire, float* y, const std::uint64_t* table, std::uint64_t count,
                          int whole, float scale, int add, std::uint32_t terms, std::uint64_t* scratch,
                          std::uint32_t* status) {
  GQ_SHARED std::uint64_t sums[kTileWarps];
  GQ_SHARED std::uint32_t fault;
  if (thread_index() == 0) fault = *status & kMalformed;
  block_barrier();
  if (fault) return;
  const Regions regions = {table, count};
  const TilePlace place(regions);
  const Kept kept(scratch, regions.tiles());
  const std::uint8_t* const message =
      wire + kept.offset[regions.first_tile(place.region)] - tiles_offset(regions.size(place.region));
  const std::uint8_t* const tile = wire + kept.offset[place.tile];
  if (!is_tile(tile, tile_size(message + kUnitBytes, place.number), place.height)) {
    if (thread_index() == 0) atomic_or(status, kMalformed);
    return;
  }
  const Reading reading = {terms, whole ? 1.0f : load<float>(message), add ? 1.0f : scale, add != 0};
  y += place.begin;
  if (tile[0] == kZeros || tile[0] > kSparse) {
    if (!add) clear(y, place.height);  // threads meet before they read on
    if (tile[0] > kSparse) report(read_sparse(tile, y, place.height, reading, sums), kMalformed, status);
  } else {
    report(read_dense(tile, y, place.height, reading), kMalformed, status);
  }
}
