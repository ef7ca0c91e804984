#include "gq/onebit_doors.hpp"

#include "gq/door.hpp"
#include "gq/grid.hpp"

namespace gq {

namespace {

std::size_t nbytes_of(const Grid& grid, std::size_t n) { return kernels().onebit_nbytes(grid, n); }

int encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, const Grid& grid) {
  return by_units(grid, n, [&](const UnitPiece& piece) {
    std::uint8_t* target = wire + nbytes_of(grid, piece.begin);
    return kernels().onebit_encode(x + piece.begin, shifted(e, piece.begin), shifted(r, piece.begin), target,
                                   piece.size(), piece.grid);
  });
}

int decode(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid, float scale) {
  return by_units(grid, n, [&](const UnitPiece& piece) {
    const std::uint8_t* source = wire + nbytes_of(grid, piece.begin);
    return kernels().onebit_decode(source, y + piece.begin, piece.size(), piece.grid, scale);
  });
}

int decode_add(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid) {
  return by_units(grid, n, [&](const UnitPiece& piece) {
    const std::uint8_t* source = wire + nbytes_of(grid, piece.begin);
    return kernels().onebit_decode_add(source, y + piece.begin, piece.size(), piece.grid);
  });
}

}  // namespace

std::size_t onebit_nbytes(const Regions& regions) {
  return sum_over(regions, [](const Region& region) { return nbytes_of(region.grid, region.size); });
}

int onebit_encode(const float* x, const float* e, float* r, std::uint8_t* wire, const Regions& regions) {
  return by_regions(regions, [&](const Region& region, std::size_t place) {
    std::uint8_t* const target = wire;
    wire += nbytes_of(region.grid, region.size);
    return encode(x + place, shifted(e, place), shifted(r, place), target, region.size, region.grid);
  });
}

int onebit_decode(const std::uint8_t* wire, float* y, const Regions& regions, float scale) {
  return by_regions(regions, [&](const Region& region, std::size_t place) {
    const std::uint8_t* const source = wire;
    wire += nbytes_of(region.grid, region.size);
    return decode(source, y + place, region.size, region.grid, scale);
  });
}

int onebit_decode_add(const std::uint8_t* wire, float* y, const Regions& regions) {
  return by_regions(regions, [&](const Region& region, std::size_t place) {
    const std::uint8_t* const source = wire;
    wire += nbytes_of(region.grid, region.size);
    return decode_add(source, y + place, region.size, region.grid);
  });
}

}  // namespace gq
