#include "gq/golomb_doors.hpp"

#include "gq/adaptive_wire.hpp"
#include "gq/grid.hpp"

namespace gq {

namespace {

constexpr std::size_t kMoreBytes = 5;  // per region
constexpr std::size_t kRoomBehind = 8;

std::size_t columns_of(const Region& region) { return unit_count(region.grid, region.size); }

std::size_t nbytes_of(const std::uint8_t* wire, std::size_t columns) {
  return headers_nbytes(columns) + entry_offset(wire, columns) * kEntry;
}

}  // namespace

std::size_t golomb_bound(const Regions& regions, std::size_t nbytes) {
  return nbytes + kMoreBytes * regions.count + kRoomBehind;
}

std::int64_t golomb_encode(const std::uint8_t* wire, std::size_t nbytes, std::uint8_t* out, const Regions& regions) {
  const std::uint8_t* const begin = out;
  for (const Region& region : regions) {
    const std::size_t columns = columns_of(region);
    const std::int64_t used = kernels().adaptive_nbytes(wire, nbytes, columns);
    if (used < 0) return -1;
    out += kernels().golomb_encode(wire, columns, out);
    wire += used;
    nbytes -= static_cast<std::size_t>(used);
  }
  return out - begin;
}

GolombSizes golomb_sizes(const std::uint8_t* wire, std::size_t nbytes, const Regions& regions) {
  GolombSizes sizes = {0, 0, 0};
  for (const Region& region : regions) {
    std::size_t coded, entries;
    const std::size_t columns = columns_of(region);
    if (!kernels().golomb_sizes(wire, nbytes, columns, region.size, coded, entries)) return {-1, 0, 0};
    sizes.coded += static_cast<std::int64_t>(coded);
    sizes.entries += entries;
    sizes.nbytes += nbytes_of(wire, columns);
    wire += coded;
    nbytes -= coded;
  }
  return sizes;
}

bool golomb_decode(const std::uint8_t* wire, std::uint8_t* out, const Regions& regions) {
  for (const Region& region : regions) {
    const std::size_t columns = columns_of(region);
    std::size_t coded, entries;
    if (!kernels().golomb_decode(wire, columns, out)) return false;
    kernels().golomb_sizes(wire, SIZE_MAX, columns, region.size, coded, entries);
    out += nbytes_of(wire, columns);
    wire += coded;
  }
  return true;
}

}  // namespace gq
