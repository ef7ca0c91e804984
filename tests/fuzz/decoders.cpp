// The decoders in C++ on any bytes: a target of libFuzzer (`make fuzz`); replay.cpp gives it the inputs of the corpus.
//
// An input says which codec, a scale, how many regions and what they are, then comes the message. It must be refused,
// or yield finite values, the same whether they are added to zeros or not; what else is read or written, sanitizers
// see.
#include "codecs.hpp"

namespace {

struct Place {
  std::vector<gq::Region> regions;
  std::size_t elements = 0, largest = 0;
};

Place place_of(Input& input) {
  Place place;
  const std::size_t count = input.number(1, 3);
  for (std::size_t at = 0; at < count; ++at) {
    const std::size_t few = input.number(0, 40);
    const std::size_t size = input.byte() == 255 ? 300 * few : few;
    const std::uint64_t run = input.number(1, 120);
    const std::uint64_t parts = input.flag() ? std::min<std::uint64_t>(run, input.number(1, 120)) : 1;
    place.regions.push_back({size, {input.number(0, 200), run, parts}, at});
    place.elements += size;
    place.largest = std::max(place.largest, size);
  }
  return place;
}

template <class Number>
void require_finite(const std::vector<Number>& values) {
  for (const Number each : values) REQUIRE(std::isfinite(each));
}

template <class Number>
void decode(const gq::runtime::Coder& coder, const Input::Bytes& message, const Place& place, double scale) {
  const gq::Regions regions = {place.regions.data(), place.regions.size()};
  const auto decode_into = [&](std::vector<Number>& y, double by, bool add, bool streaming) {
    return coder.decode(coder.options, message.data.get(), message.size, reinterpret_cast<float*>(y.data()), regions,
                        by, add, streaming);
  };
  std::vector<Number> set(place.elements), added(place.elements), scaled(place.elements);
  for (Number& each : set) each = 7;
  const std::int64_t used = decode_into(set, 1, false, false);
  REQUIRE(used <= static_cast<std::int64_t>(message.size));
  if (used >= 0) require_finite(set);
  REQUIRE(decode_into(added, 1, true, false) == used);
  if (used >= 0) REQUIRE(set == added);
  REQUIRE(decode_into(scaled, scale, false, true) == used);
  if (used >= 0) require_finite(scaled);
}

// Codecs with exact sums: decoded into a sum, which is encoded again and finished.
void sum(const gq::runtime::Coder& coder, const Input::Bytes& message, const Place& place) {
  const gq::Regions regions = {place.regions.data(), place.regions.size()};
  std::vector<float> y(place.elements, 1);
  gq::runtime::Touched touched;
  for (const bool add : {false, true}) {
    const std::int64_t used =
        coder.sums->decode(coder.options, message.data.get(), message.size, y.data(), regions, add, touched);
    REQUIRE(used <= static_cast<std::int64_t>(message.size));
    if (used < 0) return;
    for (const std::uint32_t each : touched.places) REQUIRE(each < place.elements);
    if (!add) require_finite(y);
  }
  // Longer than any message of so many values.
  std::vector<std::uint8_t> wire(place.regions.size() * 64 + place.elements * 16);
  gq::runtime::EncodingState state;
  REQUIRE(coder.sums->encode(coder.options, y.data(), wire.data(), regions, touched, state) <=
          static_cast<std::int64_t>(wire.size()));
  coder.sums->finish(coder.options, y.data(), regions);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Codecs codecs;
  Input input(data, size);
  const gq::runtime::Coder& coder = codecs.chosen(input);
  const double scale = 1.0 / static_cast<double>(input.number(1, 8));
  Place place = place_of(input);
  if (Codecs::has_buckets(coder))
    for (gq::Region& region : place.regions) region.grid.parts = 1;
  const Input::Bytes message = input.rest();
  if (codecs.wide(coder))
    decode<double>(coder, message, place, scale);
  else
    decode<float>(coder, message, place, scale);
  if (coder.sums) sum(coder, message, place);
  return 0;
}
