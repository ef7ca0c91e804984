#include "gq/rotation_doors.hpp"

#include <memory>
#include <new>

#include "gq/buckets.hpp"
#include "gq/door.hpp"
#include "gq/eden_wire.hpp"
#include "gq/grid.hpp"

namespace gq {

namespace {

std::size_t buckets_nbytes(const Grid& grid, std::size_t n, std::size_t buckets, int bits) {
  return total_of(grid, n, buckets, [bits](std::size_t height) { return eden_size(height, bits); });
}

std::size_t nbytes_of(const Region& region, int bits) {
  if (region.size == 0) return 0;
  return kKeyBytes + buckets_nbytes(region.grid, region.size, unit_count(region.grid, region.size), bits);
}

// Memory for one bucket: its values twice, and their codes.
struct Room {
  Room(const Grid& grid, std::size_t n) {
    const std::size_t most = grid.run < n ? grid.run : n;
    values.reset(new (std::nothrow) float[2 * most]);
    codes.reset(new (std::nothrow) std::uint8_t[most]);
  }
  explicit operator bool() const { return values && codes; }

  std::unique_ptr<float[]> values;
  std::unique_ptr<std::uint8_t[]> codes;
};

// work(piece, its wire, room) for the whole buckets of each thread, of one region after the other; `wire` begins with
// the region's key.
template <class Byte, class Work>
int by_buckets(const Region& region, Byte* wire, int bits, Work work) {
  return by_units(region.grid, region.size, [&](const UnitPiece& piece) {
    if (piece.size() == 0) return 0;
    const Room room(piece.grid, piece.size());
    if (!room) return kOutOfMemory;
    return work(piece, wire + kKeyBytes + buckets_nbytes(region.grid, region.size, piece.first, bits), room);
  });
}

}  // namespace

void rotate(const float* x, float* y, std::size_t n, const Grid& grid, std::uint64_t key, int rounds, bool back) {
  by_units(grid, n, [&](const UnitPiece& piece) {
    kernels().rotate(x + piece.begin, y + piece.begin, piece.size(), piece.grid, key, rounds, back);
    return 0;
  });
}

std::size_t eden_nbytes(const Regions& regions, int bits) {
  return sum_over(regions, [bits](const Region& region) { return nbytes_of(region, bits); });
}

int eden_encode(const float* x, const float* e, float* r, std::uint8_t* wire, int bits, bool contracted,
                const Regions& regions, const Stream* streams) {
  const auto nbytes = [bits](const Region& region) { return nbytes_of(region, bits); };
  return by_messages(regions, wire, nbytes, [&](const Region& region, std::size_t place, std::uint8_t* message) {
    if (region.size == 0) return 0;
    const std::uint64_t key = rotation_key(streams[region.segment]);
    store(message, key);
    return by_buckets(region, message, bits, [&](const UnitPiece& piece, std::uint8_t* to, const Room& room) {
      const std::size_t at = place + piece.begin;
      return kernels().eden_encode(x + at, shifted(e, at), shifted(r, at), to, piece.size(), bits, contracted,
                                   piece.grid, key, room.values.get(), room.codes.get());
    });
  });
}

int eden_decode(const std::uint8_t* wire, float* y, int bits, const Regions& regions, float scale, bool add) {
  const auto nbytes = [bits](const Region& region) { return nbytes_of(region, bits); };
  return by_messages(regions, wire, nbytes, [&](const Region& region, std::size_t place, const std::uint8_t* message) {
    if (region.size == 0) return 0;
    const auto key = load<std::uint64_t>(message);
    return by_buckets(region, message, bits, [&](const UnitPiece& piece, const std::uint8_t* from, const Room& room) {
      return kernels().eden_decode(from, y + place + piece.begin, piece.size(), bits, piece.grid, key, scale, add,
                                   room.values.get(), room.codes.get());
    });
  });
}

}  // namespace gq
