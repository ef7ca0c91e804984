// The families of codecs that the runtime can call, each by the doors that Python calls it by.
#include "gq/coded_doors.hpp"
#include "gq/door.hpp"
#include "gq/levels_doors.hpp"
#include "gq/onebit_doors.hpp"
#include "gq/plain_doors.hpp"
#include "gq/rotation_doors.hpp"
#include "gq/runtime/coder.hpp"

namespace gq::runtime {

namespace {

std::size_t elements_of(const Regions& regions) {
  return sum_over(regions, [](const Region& region) { return region.size; });
}

// What a door of a codec with messages of one size returns, as a number of bytes.
std::int64_t nbytes_if_good(int bad, std::size_t nbytes) {
  if (bad & kOutOfMemory) return kOutOfRoom;
  return bad ? kRefused : static_cast<std::int64_t>(nbytes);
}

std::int64_t levels_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                           const Regions& regions, const Stream* streams) {
  const int bad = gq::levels_encode(x, e, r, wire, options.levels, options.l2, regions, streams);
  return nbytes_if_good(bad, levels_nbytes(regions, options.levels));
}

std::int64_t levels_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                           const Regions& regions, float scale, bool add, bool) {
  const std::size_t expected = levels_nbytes(regions, options.levels);
  if (nbytes < expected) return kRefused;
  const int bad = add ? gq::levels_decode_add(wire, y, options.levels, regions)
                      : gq::levels_decode(wire, y, options.levels, regions, scale);
  return nbytes_if_good(bad, expected);
}

std::int64_t coded_result(std::int64_t nbytes) {
  if (nbytes == kNoMemory) return kOutOfRoom;
  return nbytes < 0 ? kRefused : nbytes;
}

std::int64_t coded_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                          const Regions& regions, const Stream* streams) {
  return coded_result(gq::coded_encode(x, e, r, wire, options.levels, options.coding, options.l2, regions, streams));
}

std::int64_t coded_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                          const Regions& regions, float scale, bool add, bool) {
  return coded_result(gq::coded_decode(wire, nbytes, y, options.levels, options.coding, regions, scale, add));
}

std::int64_t eden_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                         const Regions& regions, const Stream* streams) {
  const int bad = gq::eden_encode(x, e, r, wire, options.bits, options.contracted, regions, streams);
  return nbytes_if_good(bad, eden_nbytes(regions, options.bits));
}

std::int64_t eden_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                         const Regions& regions, float scale, bool add, bool) {
  const std::size_t expected = eden_nbytes(regions, options.bits);
  if (nbytes < expected) return kRefused;
  return nbytes_if_good(gq::eden_decode(wire, y, options.bits, regions, scale, add), expected);
}

std::int64_t onebit_encode(const Options&, const float* x, const float* e, float* r, std::uint8_t* wire,
                           const Regions& regions, const Stream*) {
  return nbytes_if_good(gq::onebit_encode(x, e, r, wire, regions), onebit_nbytes(regions));
}

std::int64_t onebit_decode(const Options&, const std::uint8_t* wire, std::size_t nbytes, float* y,
                           const Regions& regions, float scale, bool add, bool) {
  const std::size_t expected = onebit_nbytes(regions);
  if (nbytes < expected) return kRefused;
  const int bad = add ? gq::onebit_decode_add(wire, y, regions) : gq::onebit_decode(wire, y, regions, scale);
  return nbytes_if_good(bad, expected);
}

std::size_t plain_nbytes(const Options& options, const Regions& regions) {
  return elements_of(regions) * (options.format == 3 ? 4 : 2);
}

std::int64_t plain_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                          const Regions& regions, const Stream*) {
  const int bad = gq::plain_encode(x, e, r, wire, elements_of(regions), options.format);
  return nbytes_if_good(bad, plain_nbytes(options, regions));
}

std::int64_t plain_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                          const Regions& regions, float scale, bool add, bool streaming) {
  const std::size_t expected = plain_nbytes(options, regions);
  if (nbytes < expected) return kRefused;
  const int bad = gq::plain_decode(wire, y, elements_of(regions), options.format, scale, add, streaming);
  return nbytes_if_good(bad, expected);
}

}  // namespace

Coder coder_of(Family family) {
  switch (family) {
    case Family::kLevels:
      return {levels_encode, levels_decode, {}};
    case Family::kCodedLevels:
      return {coded_encode, coded_decode, {}};
    case Family::kEden:
      return {eden_encode, eden_decode, {}};
    case Family::kOneBit:
      return {onebit_encode, onebit_decode, {}};
    case Family::kPlain:
      break;
  }
  return {plain_encode, plain_decode, {}};
}

}  // namespace gq::runtime
