#include "gq/adaptive_doors.hpp"

#include "gq/adaptive_wire.hpp"
#include "gq/door.hpp"
#include "gq/grid.hpp"
#include "gq/ranking.hpp"
#include "gq/slices.hpp"

namespace gq {

namespace {

std::size_t bound_of(const Grid& grid, std::size_t n, std::size_t pi) { return kernels().select_bound(grid, n, pi); }

std::int64_t select(const float* x, const float* e, float* r, std::size_t n, const Grid& grid, std::size_t pi,
                    bool separate, std::uint32_t* index, float* value) {
  const int count = threads_for(n);
  Slices slices(count);
  const int bad = on_threads(count, [&](int thread) {
    const UnitPiece piece = piece_of_units(grid, n, thread, count);
    const std::size_t begin = bound_of(grid, piece.begin, pi);
    const std::int64_t selected = kernels().select_columns(
        x + piece.begin, shifted(e, piece.begin), shifted(r, piece.begin), piece.size(), piece.grid, pi, separate,
        static_cast<std::uint32_t>(piece.begin), index + begin, value + begin);
    slices.begin[thread] = begin;
    slices.size[thread] = selected < 0 ? 0 : static_cast<std::size_t>(selected);
    return static_cast<int>(selected < 0);
  });
  return bad ? -1 : static_cast<std::int64_t>(slices.join(index, value));
}

// select(region, place, total) of one region after the other, `total` being how many were selected before.
template <class Select>
std::int64_t select_each(const Regions& regions, std::int64_t* counts, Select select) {
  std::size_t total = 0;
  const int bad = by_regions(regions, [&](const Region& region, std::size_t place) {
    const std::int64_t count = select(region, place, total);
    *counts = count < 0 ? 0 : count;
    total += static_cast<std::size_t>(*counts++);
    return static_cast<int>(count < 0);
  });
  return bad ? -1 : static_cast<std::int64_t>(total);
}

// decode(columns, piece) is called for the whole columns of each thread.
template <class Decode>
std::int64_t decode_region(const std::uint8_t* wire, std::size_t nbytes, const Region& region, Decode decode) {
  const std::size_t columns = unit_count(region.grid, region.size);
  const std::int64_t used = kernels().adaptive_nbytes(wire, nbytes, columns);
  if (used < 0) return -1;
  const int bad = by_units(region.grid, region.size, [&](const UnitPiece& piece) { return decode(columns, piece); });
  return bad ? -1 : used;
}

// decode(wire, columns, y, piece) is called for the whole columns of each thread, of one region after the other.
template <class Decode>
std::int64_t decode_regions(const std::uint8_t* wire, std::size_t nbytes, float* y, const Regions& regions,
                            Decode decode) {
  std::size_t at = 0;
  for (const Region& region : regions) {
    const auto decode_columns = [&](std::size_t columns, const UnitPiece& piece) {
      return decode(wire + at, columns, y + piece.begin, piece);
    };
    const std::int64_t used = decode_region(wire + at, nbytes - at, region, decode_columns);
    if (used < 0) return -1;
    at += static_cast<std::size_t>(used);
    y += region.size;
  }
  return static_cast<std::int64_t>(at);
}

}  // namespace

void split(std::uint32_t* index, std::size_t count, const Regions& regions, std::int64_t* counts) {
  std::size_t at = 0;
  by_regions(regions, [&](const Region& region, std::size_t place) {
    const std::size_t first = at;
    for (; at < count && index[at] < place + region.size; ++at) index[at] -= static_cast<std::uint32_t>(place);
    *counts++ = static_cast<std::int64_t>(at - first);
    return 0;
  });
}

std::size_t select_bound(const Regions& regions, std::size_t pi) {
  return sum_over(regions, [&](const Region& region) { return bound_of(region.grid, region.size, pi); });
}

std::size_t select_regions_bound(const Regions& regions, std::size_t pi) {
  return sum_over(regions, [&](const Region& region) { return region.size ? share_of(region.size, pi) : 0; });
}

std::int64_t select_columns(const float* x, const float* e, float* r, const Regions& regions, std::size_t pi,
                            bool separate, std::uint32_t* index, float* value, std::int64_t* counts) {
  return select_each(regions, counts, [&](const Region& region, std::size_t place, std::size_t total) {
    return select(x + place, shifted(e, place), shifted(r, place), region.size, region.grid, pi, separate,
                  index + total, value + total);
  });
}

std::int64_t select_most(const float* x, const float* e, float* r, std::size_t n, std::size_t k, bool separate,
                         std::uint32_t* index, float* value) {
  const FloatGuard guard;
  return kernels().select_most(x, e, r, n, k, separate, index, value);
}

std::int64_t select_regions(const float* x, const float* e, float* r, const Regions& regions, std::size_t pi,
                            bool separate, std::uint32_t* index, float* value, std::int64_t* counts) {
  return select_each(regions, counts, [&](const Region& region, std::size_t place, std::size_t total) {
    return select_most(x + place, shifted(e, place), shifted(r, place), region.size, share_of(region.size, pi),
                       separate, index + total, value + total);
  });
}

std::size_t adaptive_nbytes(const Regions& regions, std::size_t count) {
  return kEntry * count +
         sum_over(regions, [](const Region& region) { return headers_nbytes(unit_count(region.grid, region.size)); });
}

std::int64_t adaptive_encode(const std::uint32_t* index, const float* value, const std::int64_t* counts, float* r,
                             std::uint8_t* wire, const Regions& regions) {
  const FloatGuard guard;
  const std::uint8_t* const begin = wire;
  const int bad = by_regions(regions, [&](const Region& region, std::size_t place) {
    const std::size_t count = static_cast<std::size_t>(*counts++);
    const std::int64_t nbytes =
        kernels().adaptive_encode(index, value, count, shifted(r, place), wire, region.size, region.grid);
    index += count;
    value += count;
    wire += nbytes < 0 ? 0 : nbytes;
    return static_cast<int>(nbytes < 0);
  });
  return bad ? -1 : wire - begin;
}

std::int64_t adaptive_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, const Regions& regions,
                             float scale, bool streaming) {
  const auto decode = [&](const std::uint8_t* at, std::size_t columns, float* to, const UnitPiece& piece) {
    return kernels().adaptive_decode(at, columns, piece.first, to, piece.size(), piece.grid, scale, streaming);
  };
  return decode_regions(wire, nbytes, y, regions, decode);
}

std::int64_t adaptive_decode_add(const std::uint8_t* wire, std::size_t nbytes, float* y, const Regions& regions) {
  const auto decode = [&](const std::uint8_t* at, std::size_t columns, float* to, const UnitPiece& piece) {
    return kernels().adaptive_decode_add(at, columns, piece.first, to, piece.size(), piece.grid);
  };
  return decode_regions(wire, nbytes, y, regions, decode);
}

}  // namespace gq
