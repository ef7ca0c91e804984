// The families of codecs whose sums lose nothing: own values are quantized or chosen once.
#include <algorithm>

#include "gq/doors.hpp"
#include "gq/integers_doors.hpp"
#include "gq/multiples_doors.hpp"
#include "gq/places_doors.hpp"
#include "gq/runtime/arithmetic.hpp"
#include "gq/runtime/coder.hpp"

namespace gq::runtime {

namespace {

// --- multiples of a unit that all ranks share ---

// The unit of each region.
class Units {
 public:
  Units(const Options& options, const Regions& regions) : first_(unit_of(options, *regions.begin())) {
    if (regions.count == 1) return;
    for (const Region& region : regions) many_.push_back(*unit_of(options, region));
  }
  const float* data() const { return many_.empty() ? first_ : many_.data(); }

 private:
  static const float* unit_of(const Options& options, const Region& region) {
    return options.units + (options.n_units == 1 ? 0 : region.segment);
  }

  const float* first_;
  std::vector<float> many_;
};

std::int64_t integers_result(std::int64_t nbytes) { return nbytes == -2 ? kTooLarge : nbytes < 0 ? kRefused : nbytes; }

std::int64_t integers_encode_sum(const Options& options, const float* y, std::uint8_t* wire, const Regions& regions,
                                 Touched&, EncodingState&) {
  return integers_result(gq::integers_encode(y, wire, Units(options, regions).data(), options.terms, regions));
}

std::int64_t integers_decode_sum(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                                 const Regions& regions, bool add, Touched&) {
  return integers_result(
      gq::integers_decode(wire, nbytes, y, Units(options, regions).data(), true, 1, add, options.terms, regions));
}

std::int64_t integers_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                             const Regions& regions, const Stream* streams, const Kept*, EncodingState& state) {
  return integers_result(gq::integers_encode_own(x, e, r, wire, Units(options, regions).data(), options.ternary,
                                                 regions, streams, &state.clipped));
}

std::int64_t integers_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                             const Regions& regions, float scale, bool add, bool) {
  return integers_result(
      gq::integers_decode(wire, nbytes, y, Units(options, regions).data(), false, scale, add, options.terms, regions));
}

bool integers_begin(const Options& options, const float* x, const float* e, float* r, float* y, const Regions& regions,
                    const Stream* streams, const Kept*, Touched&, EncodingState& state) {
  return gq::integers_quantize(x, e, r, y, Units(options, regions).data(), options.ternary, regions, streams,
                               &state.clipped) == 0;
}

bool multiples_finish(const Options& options, float* y, const Regions& regions) {
  return gq::multiples_lower(y, Units(options, regions).data(), options.rotated, regions) == 0;
}

bool multiples_begin(const Options& options, const float* x, const float* e, float* r, float* y, const Regions& regions,
                     const Stream* streams, const Kept*, Touched&, EncodingState& state) {
  const Units units(options, regions);
  return gq::multiples_quantize(x, e, r, y, units.data(), options.steps, options.rotated, regions, streams,
                                &state.clipped) == 0;
}

std::int64_t multiples_encode(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                              const Regions& regions, const Stream* streams, const Kept* kept, EncodingState& state) {
  std::vector<float>& integers = state.room;
  integers.resize(elements_of(regions));
  Touched touched;
  if (!multiples_begin(options, x, e, r, integers.data(), regions, streams, kept, touched, state)) return kRefused;
  return integers_encode_sum(options, integers.data(), wire, regions, touched, state);
}

std::int64_t multiples_decode(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                              const Regions& regions, float scale, bool, bool) {
  Touched touched;
  const std::int64_t used = integers_decode_sum(options, wire, nbytes, y, regions, false, touched);
  if (used < 0) return used;
  if (!multiples_finish(options, y, regions)) return kRefused;
  if (scale != 1) multiply(y, scale, y, elements_of(regions));
  return used;
}

// --- unions of chosen values ---

// Where more of the elements than one of so many may differ from zero, all are looked at.
constexpr std::size_t kScanned = 16;

void forget_if_many(Touched& touched, const Regions& regions) {
  if (touched.anywhere || touched.places.size() <= elements_of(regions) / kScanned) return;
  touched.anywhere = true;
  touched.places.clear();
}

std::int64_t union_encode(const Options&, const float*, const float*, float* r, std::uint8_t* wire,
                          const Regions& regions, const Stream*, const Kept* kept, EncodingState&) {
  if (!kept->finite) return kRefused;
  return gq::sparse_encode(kept->index, kept->value, kept->counts, r, wire, regions);
}

std::int64_t union_decode(const Options&, const std::uint8_t* wire, std::size_t nbytes, float* y,
                          const Regions& regions, float scale, bool add, bool) {
  const std::int64_t read = gq::sparse_decode(wire, nbytes, y, scale, add, true, regions);
  return read < 0 ? kRefused : read;
}

bool union_begin(const Options&, const float* x, const float* e, float* r, float* y, const Regions& regions,
                 const Stream*, const Kept* kept, Touched& touched, EncodingState&) {
  const std::size_t n = elements_of(regions);
  if (!kept->finite) {
    add_finite(x, e, reinterpret_cast<std::uint8_t*>(y), n);
    return false;
  }
  std::fill_n(y, n, 0.0f);
  touched.anywhere = false;
  touched.places.clear();
  const std::int64_t* counts = kept->counts;
  std::size_t first = 0, at = 0;
  for (const Region& region : regions) {
    for (const std::size_t last = at + static_cast<std::size_t>(*counts++); at < last; ++at) {
      const std::size_t place = first + kept->index[at];
      y[place] = 0.0f + kept->value[at];
      if (r) r[place] = 0;
      touched.places.push_back(static_cast<std::uint32_t>(place));
    }
    first += region.size;
  }
  forget_if_many(touched, regions);
  return true;
}

std::int64_t union_decode_sum(const Options&, const std::uint8_t* wire, std::size_t nbytes, float* y,
                              const Regions& regions, bool add, Touched& touched) {
  if (!add) touched.anywhere = false, touched.places.clear();
  const std::int64_t read = gq::sparse_decode_sum(wire, nbytes, y, add, regions, touched.places, touched.anywhere);
  forget_if_many(touched, regions);
  return read < 0 ? kRefused : read;
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
constexpr ExactSums kIntegerSums = {integers_begin, integers_encode_sum, integers_decode_sum, multiples_finish};
constexpr ExactSums kMultipleSums = {multiples_begin, integers_encode_sum, integers_decode_sum, multiples_finish};

}  // namespace

Coder exact_coder_of(Family family) {
  switch (family) {
    case Family::kUnion:
      return {union_encode, union_decode, &kUnionSums, {}};
    case Family::kIntegers:
      return {integers_encode, integers_decode, &kIntegerSums, {}};
    default:
      return {multiples_encode, multiples_decode, &kMultipleSums, {}};
  }
}

}  // namespace gq::runtime
