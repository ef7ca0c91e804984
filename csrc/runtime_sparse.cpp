// The families of codecs that send chosen values with their places: those as float32, or as another codec's message.
// Partial sums are chosen from anew, or kept and sent exactly (gqallreduce/coding/union.py).
#include <algorithm>
#include <new>

#include "gq/doors.hpp"
#include "gq/places_doors.hpp"
#include "gq/runtime/arithmetic.hpp"
#include "gq/runtime/coder.hpp"
#include "gq/wire.hpp"

namespace gq::runtime {

namespace {

// --- values as messages of another codec ---

// Of one region: memory to work in, which grows to what messages need.
struct Scratch {
  std::vector<std::uint32_t> index;
  std::vector<float> values, errors;
  std::vector<std::uint8_t> wire;
};

Scratch& scratch() {
  thread_local Scratch found;
  return found;
}

const std::uint8_t* bytes_of(const std::vector<float>& values) {
  return reinterpret_cast<const std::uint8_t*>(values.data());
}

// The chosen values of a region, for their codec: as inner_region of gqallreduce/coding/sparse.py.
Region values_of(const Options& options, const Region& region, std::size_t count) {
  return {count, {region.grid.start, options.bucket, 1}, region.segment};
}

// Calls work(region, place, index, value, count) for each, until it returns less than zero, which is returned.
template <class Work>
std::int64_t by_kept(const Regions& regions, const Kept& kept, Work work) {
  std::size_t place = 0, at = 0;
  const std::int64_t* counts = kept.counts;
  for (const Region& region : regions) {
    const auto count = static_cast<std::size_t>(*counts++);
    const std::int64_t result = work(region, place, kept.index + at, kept.value + at, count);
    if (result < 0) return result;
    place += region.size;
    at += count;
  }
  return 0;
}

// Writes chosen values; r, if not null, := what of them is lost. Bytes, or as Coder::encode.
std::int64_t encode_values(const Options& options, const Region& region, const std::uint32_t* index, const float* value,
                           std::size_t count, float* r, std::uint8_t* wire, const Stream* streams,
                           EncodingState& state) {
  const Region mine = values_of(options, region, count);
  std::vector<float>& errors = scratch().errors;
  errors.resize(count);
  const Coder& by = *options.values;
  const std::int64_t nbytes =
      by.encode(by.options, value, nullptr, r ? errors.data() : nullptr, wire, {&mine, 1}, streams, nullptr, state);
  if (nbytes >= 0 && r) put_at(r, region.size, index, bytes_of(errors), count);
  return nbytes;
}

std::int64_t encode_by(const Options& options, float* r, std::uint8_t* wire, const Regions& regions,
                       const Stream* streams, const Kept& kept, EncodingState& state) {
  std::uint8_t* at = wire;
  const std::int64_t fault = by_kept(
      regions, kept,
      [&](const Region& region, std::size_t place, const std::uint32_t* index, const float* value, std::size_t count) {
        std::uint8_t* const body = at + kSparseHeader;
        std::uint8_t* const values = body + places_write(index, count, region.size, body);
        const std::int64_t nbytes =
            encode_values(options, region, index, value, count, shifted(r, place), values, streams, state);
        if (nbytes >= 0) at = sparse_seal(at, region.size, static_cast<std::uint32_t>(count), values + nbytes);
        return nbytes;
      });
  return fault ? fault : at - wire;
}

bool is_sum(const std::uint8_t* wire, std::size_t nbytes) {
  return nbytes >= kSparseHeader && load<std::uint32_t>(wire + 4) >= kSparseSum;
}

// scratch() := what the message of a region's own values says, times the scale. Bytes, or as Coder::decode.
std::int64_t read_values(const Options& options, const std::uint8_t* wire, std::size_t nbytes, const Region& region,
                         double scale) {
  if (nbytes < kSparseHeader) return kRefused;
  const auto size = load<std::uint32_t>(wire), count = load<std::uint32_t>(wire + 4),
             body = load<std::uint32_t>(wire + 8);
  if (size != region.size || count > size || nbytes - kSparseHeader < body) return kRefused;
  Scratch& found = scratch();
  found.index.resize(count);
  found.values.resize(count);
  wire += kSparseHeader;
  const std::int64_t places = places_read(wire, body, size, found.index.data(), count);
  if (places < 0) return kRefused;
  const Region mine = values_of(options, region, count);
  const std::size_t left = body - static_cast<std::size_t>(places);
  const Coder& by = *options.values;
  const std::int64_t used =
      by.decode(by.options, wire + places, left, found.values.data(), {&mine, 1}, scale, false, false);
  if (used < 0) return used;
  return static_cast<std::size_t>(used) == left ? std::int64_t{kSparseHeader} + body : kRefused;
}

// y := scale * what messages stand for, or += it. sums: may they be sums? `touched`, if not null, takes the places.
std::int64_t decode_by(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                       const Regions& regions, double scale, bool add, bool sums, Touched* touched) {
  std::size_t at = 0, place = 0;
  std::vector<std::uint32_t>& index = scratch().index;
  for (const Region& region : regions) {
    const std::uint8_t* const message = wire + at;
    const std::size_t left = nbytes - at;
    float* const here = y + place;
    std::int64_t used;
    if (sums && is_sum(message, left)) {
      bool anywhere = false;
      index.clear();
      used = touched ? sparse_decode_sum(message, left, here, add, {&region, 1}, index, anywhere)
                     : gq::sparse_decode(message, left, here, static_cast<float>(scale), add, true, {&region, 1});
      if (used < 0) return kRefused;
      if (touched && anywhere) touched->anywhere = true;
    } else if ((used = read_values(options, message, left, region, scale)) >= 0) {
      if (!add) std::fill_n(here, region.size, 0.0f);
      add_at(here, region.size, index.data(), bytes_of(scratch().values), index.size());
    }
    if (used < 0) return used;
    if (touched && !touched->anywhere)
      for (const std::uint32_t each : index) touched->places.push_back(each + static_cast<std::uint32_t>(place));
    at += static_cast<std::size_t>(used);
    place += region.size;
  }
  return static_cast<std::int64_t>(at);
}

// --- own values, and sums that are chosen from anew ---

std::int64_t kept_encode(const Options& options, const float*, const float*, float* r, std::uint8_t* wire,
                         const Regions& regions, const Stream* streams, const Kept* kept, EncodingState& state) {
  if (!kept->finite) return kRefused;
  if (options.values) return encode_by(options, r, wire, regions, streams, *kept, state);
  return gq::sparse_encode(kept->index, kept->value, kept->counts, r, wire, regions);
}

// A sum's error may be added to an own one.
std::int64_t limited_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                            const Regions& regions, const Stream* streams, const Kept* kept, EncodingState& state) {
  if (kept->finite && r && exceeds(kept->value, kept->count, kLargestWithError)) return kRefused;
  return kept_encode(options, x, e, r, wire, regions, streams, kept, state);
}

// sums: may messages be sums?
template <bool sums>
std::int64_t kept_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                         const Regions& regions, double scale, bool add, bool) {
  if (options.values) return decode_by(options, wire, nbytes, y, regions, scale, add, sums, nullptr);
  const std::int64_t read = gq::sparse_decode(wire, nbytes, y, static_cast<float>(scale), add, sums, regions);
  return read < 0 ? kRefused : read;
}

// --- sums that lose nothing: unions ---

// If more than one of so many elements may be nonzero, all are looked at.
constexpr std::size_t kScanned = 16;

void forget_if_many(Touched& touched, const Regions& regions) {
  if (!touched.anywhere && touched.places.size() <= elements_of(regions) / kScanned) return;
  touched.anywhere = true;
  touched.places.clear();
}

// sent := what chosen values become when they are sent; r, if not null, what they lose. False if they cannot be sent.
bool as_sent(const Options& options, float* r, const Regions& regions, const Stream* streams, const Kept& kept,
             EncodingState& state, const float*& sent) {
  sent = kept.value;
  if (!options.values) return true;
  const Coder& by = *options.values;
  Scratch& found = scratch();
  found.values.resize(kept.count);
  sent = found.values.data();
  const std::int64_t fault = by_kept(
      regions, kept,
      [&](const Region& region, std::size_t place, const std::uint32_t* index, const float* value, std::size_t count) {
        const Region mine = values_of(options, region, count);
        found.wire.resize(by.bound(by.options, {&mine, 1}));
        std::uint8_t* const wire = found.wire.data();
        const std::int64_t nbytes =
            encode_values(options, region, index, value, count, shifted(r, place), wire, streams, state);
        float* const made = found.values.data() + (value - kept.value);
        return nbytes < 0
                   ? nbytes
                   : by.decode(by.options, wire, static_cast<std::size_t>(nbytes), made, {&mine, 1}, 1, false, false);
      });
  if (fault == kOutOfRoom) throw std::bad_alloc();
  return fault == 0;
}

// y may be x.
bool union_begin(const Options& options, const float* x, const float* e, float* r, float* y, const Regions& regions,
                 const Stream* streams, const Kept* kept, Touched& touched, EncodingState& state) {
  const std::size_t n = elements_of(regions);
  const float* sent;
  if (!kept->finite || !as_sent(options, r, regions, streams, *kept, state, sent)) {
    add_finite(x, e, reinterpret_cast<std::uint8_t*>(y), n);
    return false;
  }
  std::fill_n(y, n, 0.0f);
  touched.anywhere = false;
  touched.places.clear();
  by_kept(regions, *kept,
          [&](const Region&, std::size_t place, const std::uint32_t* index, const float* value, std::size_t count) {
            const float* const mine = sent + (value - kept->value);
            for (std::size_t at = 0; at < count; ++at) {
              y[place + index[at]] = 0.0f + mine[at];
              if (r && !options.values) r[place + index[at]] = 0;
              touched.places.push_back(static_cast<std::uint32_t>(place + index[at]));
            }
            return std::int64_t{0};
          });
  forget_if_many(touched, regions);
  return true;
}

std::int64_t union_decode_sum(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                              const Regions& regions, bool add, Touched& touched) {
  if (!add) touched.anywhere = false, touched.places.clear();
  std::int64_t read;
  if (options.values) {
    read = decode_by(options, wire, nbytes, y, regions, 1, add, true, &touched);
  } else {
    read = gq::sparse_decode_sum(wire, nbytes, y, add, regions, touched.places, touched.anywhere);
    if (read < 0) read = kRefused;
  }
  forget_if_many(touched, regions);
  return read;
}

std::int64_t union_encode_sum(const Options&, const float* y, std::uint8_t* wire, const Regions& regions,
                              Touched& touched, EncodingState& state) {
  const std::size_t n = elements_of(regions);
  std::vector<std::uint32_t>& places = touched.places;
  std::vector<float>& values = state.room;
  if (touched.anywhere) {
    places.resize(n);
    values.resize(n);
    places.resize(collect(y, nullptr, nullptr, n, 1, places.data(), values.data(), n, false));
  } else {
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
  }
  // Of contributions that cancel nothing is sent.
  places.erase(std::remove_if(places.begin(), places.end(), [&](std::uint32_t place) { return y[place] == 0; }),
               places.end());
  values.resize(places.size());
  for (std::size_t at = 0; at < places.size(); ++at) values[at] = y[places[at]];
  if (!all_finite(values.data(), values.size())) return kRefused;
  return gq::sparse_encode_sum(places.data(), values.data(), places.size(), y, wire, regions, state.entries);
}

bool union_finish(const Options&, float*, const Regions&) { return true; }

constexpr ExactSums kUnionSums = {union_begin, union_encode_sum, union_decode_sum, union_finish};

}  // namespace

Coder sparse_coder_of(Family family) {
  if (family == Family::kUnion) return {kept_encode, kept_decode<true>, nullptr, &kUnionSums, {}};
  return {limited_encode, kept_decode<false>, nullptr, nullptr, {}};
}

}  // namespace gq::runtime
