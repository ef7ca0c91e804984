// The families of codecs whose sums are whole multiples of a unit that all ranks share, and lose nothing.
#include "gq/integers_doors.hpp"
#include "gq/multiples_doors.hpp"
#include "gq/runtime/arithmetic.hpp"
#include "gq/runtime/coder.hpp"

namespace gq::runtime {

namespace {

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
                             const Regions& regions, double scale, bool add, bool) {
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
                              const Regions& regions, double scale, bool, bool) {
  Touched touched;
  const std::int64_t used = integers_decode_sum(options, wire, nbytes, y, regions, false, touched);
  if (used < 0) return used;
  if (!multiples_finish(options, y, regions)) return kRefused;
  if (scale != 1) multiply(y, scale, y, elements_of(regions));
  return used;
}

constexpr ExactSums kIntegerSums = {integers_begin, integers_encode_sum, integers_decode_sum, multiples_finish};
constexpr ExactSums kMultipleSums = {multiples_begin, integers_encode_sum, integers_decode_sum, multiples_finish};

}  // namespace

Coder integers_coder_of(Family family) {
  if (family == Family::kIntegers) return {integers_encode, integers_decode, nullptr, &kIntegerSums, {}};
  return {multiples_encode, multiples_decode, nullptr, &kMultipleSums, {}};
}

}  // namespace gq::runtime
