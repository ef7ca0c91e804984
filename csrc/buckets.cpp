#include "gq/buckets.hpp"

#include <algorithm>

#include "gq/grid.hpp"

namespace gq {

namespace {

constexpr std::size_t kTileValues = 4096;  // rotated and encoded at once: whole buckets
constexpr int kRotationRounds = 1;

std::size_t buckets_in_tile(const Grid& grid) {
  return grid.run < kTileValues ? static_cast<std::size_t>(kTileValues / grid.run) : 1;
}

}  // namespace

Buckets::Buckets(const Levels& levels, std::uint64_t key, const Grid& grid, std::size_t n)
    : levels_(levels), key_(key) {
  if (!levels.rotated) return;
  const std::uint64_t tile = grid.run * buckets_in_tile(grid);
  values_.reset(new (std::nothrow) float[std::min<std::uint64_t>(tile, n)]);
}

// work(begin, size, grid) for some whole buckets after the other, until it returns something else than 0.
template <class Work>
int Buckets::by_tiles(std::size_t n, const Grid& grid, Work work) const {
  const std::size_t units = unit_count(grid, n), step = buckets_in_tile(grid);
  for (std::size_t unit = 0; unit < units; unit += step) {
    const std::size_t begin = unit_begin(grid, n, unit), end = unit_begin(grid, n, unit + step);
    if (const int bad = work(begin, end - begin, Grid{grid.start + begin, grid.run, grid.parts})) return bad;
  }
  return 0;
}

bool Buckets::good_scales(const std::uint8_t* wire, std::size_t n, const Grid& grid) const {
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    if (!is_rotated_scale(scale_from(levels_, wire), levels_.reach, unit.height())) return false;
    wire += scale_size(levels_) + packed_size(unit.height(), levels_.bits);
  }
  return true;
}

int Buckets::encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, bool l2,
                    const Grid& grid, const Stream& stream) const {
  if (!levels_.rotated) return kernels().levels_encode(x, e, r, wire, n, levels_, l2, grid, stream);
  return by_tiles(n, grid, [&](std::size_t begin, std::size_t size, const Grid& tile) {
    const float *const from = x + begin, *const error = e ? e + begin : nullptr;
    float* const v = values_.get();
    const std::size_t nbytes = levels_offset(tile, size, unit_count(tile, size), levels_);
    kernels().add_finite(from, error, reinterpret_cast<std::uint8_t*>(v), size);
    kernels().rotate(v, v, size, tile, key_, kRotationRounds, false);
    if (kernels().levels_encode(v, nullptr, nullptr, wire, size, levels_, l2, tile, stream)) return 1;
    if (!good_scales(wire, size, tile)) return 1;
    if (r) {
      kernels().levels_decode(wire, nbytes, v, size, levels_, tile, 1.0f, false);
      kernels().rotate(v, v, size, tile, key_, kRotationRounds, true);
      kernels().add_finite(from, error, reinterpret_cast<std::uint8_t*>(r + begin), size);
      for (std::size_t i = 0; i < size; ++i) r[begin + i] -= v[i];
    }
    wire += nbytes;
    return 0;
  });
}

int Buckets::decode(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n, const Grid& grid,
                    float scale, bool add) const {
  if (!levels_.rotated) return kernels().levels_decode(wire, nbytes, y, n, levels_, grid, scale, add);
  if (nbytes != levels_offset(grid, n, unit_count(grid, n), levels_)) return 1;
  return by_tiles(n, grid, [&](std::size_t begin, std::size_t size, const Grid& tile) {
    float* const v = values_.get();
    const std::size_t used = levels_offset(tile, size, unit_count(tile, size), levels_);
    if (!good_scales(wire, size, tile)) return 1;
    if (kernels().levels_decode(wire, used, v, size, levels_, tile, 1.0f, false)) return 1;
    kernels().rotate(v, v, size, tile, key_, kRotationRounds, true);
    for (std::size_t i = 0; i < size; ++i) y[begin + i] = add ? y[begin + i] + v[i] : v[i] * scale;
    wire += used;
    return 0;
  });
}

}  // namespace gq
