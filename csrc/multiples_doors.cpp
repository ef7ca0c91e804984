#include "gq/multiples_doors.hpp"

#include <memory>
#include <new>

#include "gq/counter.hpp"
#include "gq/door.hpp"
#include "gq/grid.hpp"
#include "gq/rotated_wire.hpp"
#include "gq/strips.hpp"

namespace gq {

namespace {

constexpr int kNotFinite = 1;

// What is worked on together: without a rotation any units will do.
Grid units_of(const Region& region, bool rotated) {
  return rotated ? region.grid : Grid{region.grid.start, kStripValues, 1};
}

// Multiples of a unit, of values and back, strip by strip.
class Multiples {
 public:
  Multiples(float unit, bool rotated) : unit_(unit), key_(bits_of(unit)), rotated_(rotated) {}

  // m := v as multiples. Is one not finite when it is rotated?
  bool round(const float* v, float* m, std::size_t n, const Grid& grid, int steps, const Stream& stream,
             std::size_t* clipped) const {
    if (rotated_) kernels().rotate(v, m, n, grid, key_, kRotationRounds, false);
    if (rotated_ && !kernels().all_finite(m, n)) return true;
    kernels().multiples_round(rotated_ ? m : v, m, n, unit_, steps, grid.start, stream, clipped);
    return false;
  }

  // y := m as values; y may be m. Is one not finite?
  bool lower(const float* m, float* y, std::size_t n, const Grid& grid) const {
    if (rotated_) kernels().rotate(m, y, n, grid, key_, kRotationRounds, true);
    const float* const turned = rotated_ ? y : m;
    for (std::size_t i = 0; i < n; ++i) y[i] = turned[i] * unit_;  // last, so that small units lose no bits before
    return !kernels().all_finite(y, n);
  }

 private:
  float unit_;
  std::uint64_t key_;
  bool rotated_;
};

}  // namespace

void largest_deviation(const float* x, const float* e, const Regions& regions, double clip, double* found) {
  const FloatGuard guard;
  by_regions(regions, [&](const Region& region, std::size_t place) {
    *found++ = kernels().largest_deviation(x + place, shifted(e, place), region.size, region.grid, clip);
    return 0;
  });
}

int multiples_quantize(const float* x, const float* e, float* r, float* m, const float* units, int steps, bool rotated,
                       const Regions& regions, const Stream* streams, std::uint64_t* clipped) {
  Counter counter(clipped);
  return by_regions(regions, [&](const Region& region, std::size_t place) {
    const Multiples multiples(*units++, rotated);
    const Grid units_here = units_of(region, rotated);
    return by_units(units_here, region.size, [&](const UnitPiece& piece) {
      const std::size_t most = strip_values(piece.grid, piece.size());
      const std::unique_ptr<float[]> room(new (std::nothrow) float[2 * most]);
      if (!room) return kOutOfMemory;
      float *const v = room.get(), *const sent = v + most;
      int bad = 0;
      by_strips(piece.size(), piece.grid, [&](std::size_t begin, std::size_t n, const Grid& strip) {
        const std::size_t at = place + piece.begin + begin;
        int unfit = kernels().add_finite(x + at, shifted(e, at), reinterpret_cast<std::uint8_t*>(v), n);
        if (!unfit)
          unfit = counter.count_in([&](std::size_t* count) {
            return multiples.round(v, m + at, n, strip, steps, streams[region.segment], count);
          });
        if (!unfit && r) {
          unfit = multiples.lower(m + at, sent, n, strip);
          for (std::size_t i = 0; i < n; ++i) r[at + i] = v[i] - sent[i];
          unfit |= !kernels().all_finite(r + at, n);
        }
        if (unfit) std::memcpy(m + at, v, n * sizeof(float));
        bad |= unfit;
        return 0;
      });
      return bad ? kNotFinite : 0;
    });
  });
}

int multiples_lower(float* m, const float* units, bool rotated, const Regions& regions) {
  return by_regions(regions, [&](const Region& region, std::size_t place) {
    const Multiples multiples(*units++, rotated);
    const Grid units_here = units_of(region, rotated);
    return by_units(units_here, region.size, [&](const UnitPiece& piece) {
      int bad = 0;
      by_strips(piece.size(), piece.grid, [&](std::size_t begin, std::size_t n, const Grid& strip) {
        float* const at = m + place + piece.begin + begin;
        bad |= multiples.lower(at, at, n, strip);
        return 0;
      });
      return bad;
    });
  });
}

}  // namespace gq
