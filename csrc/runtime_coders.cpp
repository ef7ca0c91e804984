// The families of codecs that the runtime can call, each by the doors that Python calls it by.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gq/adaptive_doors.hpp"
#include "gq/coded_doors.hpp"
#include "gq/door.hpp"
#include "gq/golomb_doors.hpp"
#include "gq/integers_doors.hpp"
#include "gq/levels_doors.hpp"
#include "gq/onebit_doors.hpp"
#include "gq/plain_doors.hpp"
#include "gq/rotation_doors.hpp"
#include "gq/runtime/arithmetic.hpp"
#include "gq/runtime/coder.hpp"
#include "gq/runtime/own_scale.hpp"

namespace gq::runtime {

namespace {

constexpr std::size_t kReadBehind = 8;  // bytes behind Golomb-Rice codes that a reader looks at

// What a door of a codec with messages of one size returns, as a number of bytes.
std::int64_t nbytes_if_good(int bad, std::size_t nbytes) {
  if (bad & kOutOfMemory) return kOutOfRoom;
  return bad ? kRefused : static_cast<std::int64_t>(nbytes);
}

std::size_t levels_bound(const Options& options, const Regions& regions) {
  return levels_nbytes(regions, options.levels);
}

std::int64_t levels_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                           const Regions& regions, const Stream* streams, const Kept*, EncodingState&) {
  const int bad = gq::levels_encode(x, e, r, wire, options.levels, options.l2, regions, streams);
  return nbytes_if_good(bad, levels_nbytes(regions, options.levels));
}

std::int64_t levels_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                           const Regions& regions, double scale, bool add, bool) {
  const std::size_t expected = levels_nbytes(regions, options.levels);
  if (nbytes < expected) return kRefused;
  const int bad = add ? gq::levels_decode_add(wire, y, options.levels, regions)
                      : gq::levels_decode(wire, y, options.levels, regions, scale);
  return nbytes_if_good(bad, expected);
}

std::int64_t levels_encode_apart(const Options& options, const Vectors* vectors, std::uint8_t* wire,
                                 const Regions& regions, const Stream* streams) {
  const int bad = gq::levels_encode_apart(vectors, wire, options.levels, options.l2, regions, streams);
  return nbytes_if_good(bad, levels_nbytes(regions, options.levels));
}

std::int64_t levels_decode_apart(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* const* y,
                                 const Regions& regions, double scale) {
  const std::size_t expected = levels_nbytes(regions, options.levels);
  if (nbytes < expected) return kRefused;
  const int bad = gq::levels_decode_apart(wire, y, options.levels, regions, static_cast<float>(scale));
  return nbytes_if_good(bad, expected);
}

std::int64_t coded_result(std::int64_t nbytes) {
  if (nbytes == kNoMemory) return kOutOfRoom;
  return nbytes < 0 ? kRefused : nbytes;
}

std::size_t coded_bound(const Options& options, const Regions& regions) {
  return gq::coded_bound(regions, options.levels);
}

std::int64_t coded_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                          const Regions& regions, const Stream* streams, const Kept*, EncodingState&) {
  return coded_result(gq::coded_encode(x, e, r, wire, options.levels, options.coding, options.l2, regions, streams));
}

std::int64_t coded_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                          const Regions& regions, double scale, bool add, bool) {
  return coded_result(gq::coded_decode(wire, nbytes, y, options.levels, options.coding, regions, scale, add));
}

std::int64_t eden_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                         const Regions& regions, const Stream* streams, const Kept*, EncodingState&) {
  const int bad = gq::eden_encode(x, e, r, wire, options.bits, options.contracted, regions, streams);
  return nbytes_if_good(bad, eden_nbytes(regions, options.bits));
}

std::int64_t eden_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                         const Regions& regions, double scale, bool add, bool) {
  const std::size_t expected = eden_nbytes(regions, options.bits);
  if (nbytes < expected) return kRefused;
  return nbytes_if_good(gq::eden_decode(wire, y, options.bits, regions, scale, add), expected);
}

std::int64_t onebit_encode(const Options&, const float* x, const float* e, float* r, std::uint8_t* wire,
                           const Regions& regions, const Stream*, const Kept*, EncodingState&) {
  return gq::onebit_encode(x, e, r, wire, regions);
}

std::int64_t onebit_decode(const Options&, const std::uint8_t* wire, std::size_t nbytes, float* y,
                           const Regions& regions, double scale, bool add, bool) {
  if (nbytes < onebit_nbytes(regions)) return kRefused;
  return add ? gq::onebit_decode_add(wire, y, regions) : gq::onebit_decode(wire, y, regions, scale);
}

std::int64_t onebit_encode_apart(const Options&, const Vectors* vectors, std::uint8_t* wire, const Regions& regions,
                                 const Stream*) {
  return gq::onebit_encode_apart(vectors, wire, regions);
}

std::int64_t onebit_decode_apart(const Options&, const std::uint8_t* wire, std::size_t nbytes, float* const* y,
                                 const Regions& regions, double scale) {
  if (nbytes < onebit_nbytes(regions)) return kRefused;
  return gq::onebit_decode_apart(wire, y, regions, static_cast<float>(scale));
}

std::size_t plain_nbytes(const Options& options, const Regions& regions) {
  return elements_of(regions) * (options.format == 3 ? 4 : 2);
}

std::int64_t plain_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                          const Regions& regions, const Stream*, const Kept*, EncodingState&) {
  const int bad = gq::plain_encode(x, e, r, wire, elements_of(regions), options.format);
  return nbytes_if_good(bad, plain_nbytes(options, regions));
}

std::int64_t plain_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                          const Regions& regions, double scale, bool add, bool streaming) {
  const std::size_t expected = plain_nbytes(options, regions);
  if (nbytes < expected) return kRefused;
  const int bad = gq::plain_decode(wire, y, elements_of(regions), options.format, scale, add, streaming);
  return nbytes_if_good(bad, expected);
}

// x, y: float64 behind pointers to float.
std::int64_t wide_encode(const Options&, const float* x, const float* e, float* r, std::uint8_t* wire,
                         const Regions& regions, const Stream*, const Kept*, EncodingState&) {
  const std::size_t n = elements_of(regions);
  if (r) std::fill_n(r, n, 0.0f);
  return wide_add(doubles(x), e, wire, n) ? kRefused : static_cast<std::int64_t>(n * sizeof(double));
}

std::int64_t wide_decode(const Options&, const std::uint8_t* wire, std::size_t nbytes, float* y, const Regions& regions,
                         double scale, bool add, bool) {
  const std::size_t n = elements_of(regions);
  if (nbytes < n * sizeof(double)) return kRefused;
  double* const values = doubles(y);
  const int bad = by_elements(n, [&](std::size_t begin, std::size_t size) {
    int flawed = 0;
    for (std::size_t at = begin; at < begin + size; ++at) {
      const auto value = load<double>(wire + at * sizeof(double));
      values[at] = add ? values[at] + value : value * scale;
      flawed |= !finite(value);
    }
    return flawed;
  });
  return nbytes_if_good(bad, n * sizeof(double));
}

std::int64_t adaptive_encode(const Options& options, const float*, const float*, float* r, std::uint8_t* wire,
                             const Regions& regions, const Stream*, const Kept* kept, EncodingState& state) {
  if (!kept->finite) return kRefused;
  if (!options.golomb) return gq::adaptive_encode(kept->index, kept->value, kept->counts, r, wire, regions);
  state.room.resize((gq::adaptive_nbytes(regions, kept->count) + sizeof(float) - 1) / sizeof(float));
  auto* const message = reinterpret_cast<std::uint8_t*>(state.room.data());
  const std::int64_t nbytes = gq::adaptive_encode(kept->index, kept->value, kept->counts, r, message, regions);
  if (nbytes < 0) return kRefused;
  return gq::golomb_encode(message, static_cast<std::size_t>(nbytes), wire, regions);
}

// The bytes of messages with Golomb-Rice codes, which are longer in `message`; kRefused if one is malformed.
std::int64_t golomb_decode(const std::uint8_t* wire, std::size_t nbytes, const Regions& regions,
                           std::vector<std::uint8_t>& message) {
  const GolombSizes sizes = gq::golomb_sizes(wire, nbytes, regions);
  if (sizes.coded < 0) return kRefused;
  const auto coded = static_cast<std::size_t>(sizes.coded);
  message.resize(sizes.nbytes + coded + kReadBehind);
  std::uint8_t* const copy = message.data() + sizes.nbytes;
  std::memcpy(copy, wire, coded);
  std::memset(copy + coded, 0, kReadBehind);
  const bool good = gq::golomb_decode(copy, message.data(), regions);
  message.resize(sizes.nbytes);
  return good ? sizes.coded : kRefused;
}

std::int64_t fixed_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, const Regions& regions, double scale,
                          bool add, bool streaming) {
  return add ? gq::adaptive_decode_add(wire, nbytes, y, regions)
             : gq::adaptive_decode(wire, nbytes, y, regions, scale, streaming);
}

std::int64_t adaptive_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                             const Regions& regions, double scale, bool add, bool streaming) {
  if (!options.golomb) return fixed_decode(wire, nbytes, y, regions, scale, add, streaming);
  thread_local std::vector<std::uint8_t> message;
  const std::int64_t used = golomb_decode(wire, nbytes, regions, message);
  if (used < 0) return used;
  const std::int64_t read = fixed_decode(message.data(), message.size(), y, regions, scale, add, streaming);
  return read < 0 ? kRefused : used;
}

std::int64_t ternary_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                            const Regions& regions, const Stream* streams, const Kept*, EncodingState& state) {
  std::vector<float>& units = state.room;
  units.clear();
  std::size_t at = 0;
  for (const Region& region : regions) {
    OwnScale scale;
    scale.add(x + at, e ? e + at : nullptr, region, options.clip);
    units.push_back(scale.of(options.clip));
    at += region.size;
  }
  const std::int64_t nbytes =
      gq::integers_encode_own(x, e, r, wire, units.data(), true, regions, streams, &state.clipped);
  return nbytes < 0 ? kRefused : nbytes;
}

std::int64_t ternary_decode(const Options&, const std::uint8_t* wire, std::size_t nbytes, float* y,
                            const Regions& regions, double scale, bool add, bool) {
  const float any = -1;
  std::size_t read = 0, at = 0;
  for (const Region& region : regions) {
    const std::int64_t used =
        gq::integers_decode(wire + read, nbytes - read, y + at, &any, false, scale, add, 1, {&region, 1});
    if (used < 0) return kRefused;
    read += static_cast<std::size_t>(used);
    at += region.size;
  }
  return static_cast<std::int64_t>(read);
}

}  // namespace

std::size_t Options::most(std::size_t elements, std::size_t total) const {
  if (pi > 0) return std::min(std::max<std::size_t>(1, elements / pi), elements);
  if (k > 0) {
    const auto share = static_cast<unsigned __int128>(k) * elements, of = static_cast<unsigned __int128>(total);
    return std::min(elements, total ? static_cast<std::size_t>((share + of - 1) / of) : elements);
  }
  const auto some = static_cast<std::size_t>(std::floor(ratio * static_cast<double>(elements)));
  return std::min(elements, std::max<std::size_t>(1, some));
}

bool Coder::verbatim() const { return encode == wide_encode || (encode == plain_encode && options.format == 3); }

Coder coder_of(Family family) {
  switch (family) {
    case Family::kLevels:
      return {levels_encode, levels_decode, levels_bound, nullptr, {}, true, levels_encode_apart, levels_decode_apart};
    case Family::kCodedLevels:
      return {coded_encode, coded_decode, coded_bound, nullptr, {}};
    case Family::kEden:
      return {eden_encode, eden_decode, nullptr, nullptr, {}, true};
    case Family::kOneBit:
      return {onebit_encode, onebit_decode, nullptr, nullptr, {}, true, onebit_encode_apart, onebit_decode_apart};
    case Family::kWide:
      return {wide_encode, wide_decode, nullptr, nullptr, {}};
    case Family::kAdaptive:
      return {adaptive_encode, adaptive_decode, nullptr, nullptr, {}, true};
    case Family::kTernary:
      return {ternary_encode, ternary_decode, nullptr, nullptr, {}};
    case Family::kSparse:
    case Family::kUnion:
      return sparse_coder_of(family);
    case Family::kIntegers:
    case Family::kMultiples:
      return integers_coder_of(family);
    case Family::kPlain:
      break;
  }
  return {plain_encode, plain_decode, plain_nbytes, nullptr, {}, true};
}

}  // namespace gq::runtime
