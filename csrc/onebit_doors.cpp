#include "gq/onebit_doors.hpp"

#include "gq/door.hpp"
#include "gq/grid.hpp"

namespace gq {

namespace {

std::size_t nbytes_of(const Region& region) { return kernels().onebit_nbytes(region.grid, region.size); }

// Where the message of a piece begins in that of its region.
std::size_t offset_of(const Region& region, const UnitPiece& piece) {
  return piece.begin ? kernels().onebit_nbytes(region.grid, piece.begin) : 0;
}

// A region of several: its number, and where its values begin among those of all.
struct Place {
  std::size_t number, begin;
};

// work(place, piece of the region, the message of the piece) -> bytes, or -1. Returns the bytes of all messages, which
// lie end to end from `wire` on, or -1 as soon as one is bad. On one thread a region costs its work and little more:
// many may be short, and fetch(region, its number) is called before.
template <class Byte, class Work, class Fetch>
std::int64_t by_columns(const Regions& regions, Byte* wire, Work work, Fetch fetch) {
  const FloatGuard guard;
  const bool alone = threads_for(elements_of(regions)) == 1;
  Byte* message = wire;
  Place place = {0, 0};
  for (const Region& region : regions) {
    std::int64_t nbytes;
    if (alone) {
      fetch(region, place.number);
      nbytes = work(place, UnitPiece{{0, region.size}, 0, region.grid}, message);
    } else {
      const int bad = by_units(region.grid, region.size, [&](const UnitPiece& piece) {
        return work(place, piece, message + offset_of(region, piece)) < 0;
      });
      nbytes = bad ? -1 : static_cast<std::int64_t>(nbytes_of(region));
    }
    if (nbytes < 0) return -1;
    message += nbytes;
    ++place.number;
    place.begin += region.size;
  }
  return message - wire;
}

// Of regions that lie end to end.
template <class Byte, class Work>
std::int64_t by_columns(const Regions& regions, Byte* wire, Work work) {
  return by_columns(regions, wire, work, [](const Region&, std::size_t) {});
}

}  // namespace

std::size_t onebit_nbytes(const Regions& regions) { return sum_over(regions, nbytes_of); }

std::int64_t onebit_encode(const float* x, const float* e, float* r, std::uint8_t* wire, const Regions& regions) {
  return by_columns(regions, wire, [&](const Place& place, const UnitPiece& piece, std::uint8_t* message) {
    const std::size_t at = place.begin + piece.begin;
    return kernels().onebit_encode(x + at, shifted(e, at), shifted(r, at), message, piece.size(), piece.grid);
  });
}

std::int64_t onebit_encode_apart(const Vectors* vectors, std::uint8_t* wire, const Regions& regions) {
  const auto encode = [&](const Place& place, const UnitPiece& piece, std::uint8_t* message) {
    const auto [x, e, r] = vectors[place.number];
    const std::size_t at = piece.begin;
    return kernels().onebit_encode(x + at, shifted(e, at), shifted(r, at), message, piece.size(), piece.grid);
  };
  return by_columns(regions, wire, encode,
                    [&](const Region& region, std::size_t number) { fetch_ahead(vectors + number, region, regions); });
}

std::int64_t onebit_decode(const std::uint8_t* wire, float* y, const Regions& regions, float scale) {
  return by_columns(regions, wire, [&](const Place& place, const UnitPiece& piece, const std::uint8_t* message) {
    return kernels().onebit_decode(message, y + place.begin + piece.begin, piece.size(), piece.grid, scale);
  });
}

std::int64_t onebit_decode_apart(const std::uint8_t* wire, float* const* y, const Regions& regions, float scale) {
  const auto decode = [&](const Place& place, const UnitPiece& piece, const std::uint8_t* message) {
    return kernels().onebit_decode(message, y[place.number] + piece.begin, piece.size(), piece.grid, scale);
  };
  return by_columns(regions, wire, decode,
                    [&](const Region& region, std::size_t number) { fetch_ahead(y + number, region, regions); });
}

std::int64_t onebit_decode_add(const std::uint8_t* wire, float* y, const Regions& regions) {
  return by_columns(regions, wire, [&](const Place& place, const UnitPiece& piece, const std::uint8_t* message) {
    return kernels().onebit_decode_add(message, y + place.begin + piece.begin, piece.size(), piece.grid);
  });
}

}  // namespace gq
