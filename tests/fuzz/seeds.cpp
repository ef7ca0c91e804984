// Prints the first inputs of a target, a line of hexadecimal digits each: for every codec a message of own values, and
// if it has exact sums one of a sum, behind the bytes that the target reads first.
#include <cstring>
#include <string>

#include "codecs.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;
using gq::runtime::Coder;

constexpr std::size_t kLargest = 24;  // elements

// Values of one region, and which of them are chosen: every third.
struct Values {
  explicit Values(std::size_t n) : floats(n), doubles(n) {
    for (std::size_t at = 0; at < n; ++at) {
      doubles[at] = floats[at] = 0.5f * static_cast<float>(static_cast<int>(at % 7) - 3);
      if (at % 3) continue;
      index.push_back(static_cast<std::uint32_t>(at));
      chosen.push_back(floats[at]);
    }
    counts[0] = static_cast<std::int64_t>(index.size());
  }

  gq::runtime::Kept kept() const { return {index.data(), chosen.data(), counts, index.size(), true}; }

  std::vector<float> floats, chosen;
  std::vector<double> doubles;
  std::vector<std::uint32_t> index;
  std::int64_t counts[1];
};

Bytes message(const Coder& coder, bool wide, const gq::Region& region, bool sum) {
  const Values values(region.size);
  const gq::runtime::Kept kept = values.kept();
  const gq::Regions regions = {&region, 1};
  const gq::Stream stream = {1, 2, 0, 0, 3};
  gq::runtime::EncodingState state;
  Bytes wire(4096);
  std::int64_t nbytes;
  if (sum) {
    std::vector<float> y(region.size);
    gq::runtime::Touched touched;
    REQUIRE(coder.sums->begin(coder.options, values.floats.data(), nullptr, nullptr, y.data(), regions, &stream, &kept,
                              touched, state));
    nbytes = coder.sums->encode(coder.options, y.data(), wire.data(), regions, touched, state);
  } else {
    const auto* const x = wide ? reinterpret_cast<const float*>(values.doubles.data()) : values.floats.data();
    nbytes = coder.encode(coder.options, x, nullptr, nullptr, wire.data(), regions, &stream, &kept, state);
  }
  REQUIRE(nbytes >= 0);
  wire.resize(static_cast<std::size_t>(nbytes));
  return wire;
}

void print(const Bytes& input) {
  for (const std::uint8_t byte : input) std::printf("%02x", byte);
  std::printf("\n");
}

// As decoders.cpp reads it: the codec, a scale of 1, one region whose grid begins at 0.
Bytes for_decoders(std::uint8_t codec, const gq::Region& region, const Bytes& found) {
  Bytes input = {codec, 0, 0, static_cast<std::uint8_t>(region.size), 0, static_cast<std::uint8_t>(region.grid.run - 1),
                 0};
  input.push_back(0);
  input.insert(input.end(), found.begin(), found.end());
  return input;
}

// As frames.cpp reads it: the codec, then in each of two lanes a message of rank 1, and two of rank 2, with headers.
Bytes for_frames(std::uint8_t codec, const Bytes& found) {
  Bytes input = {codec};
  for (int at = 0; at < 6; ++at) {
    input.insert(input.end(), {1, static_cast<std::uint8_t>(found.size())});
    input.insert(input.end(), found.begin(), found.end());
  }
  return input;
}

// The same, with values that rank 1 exposes, with these flags, in place of its message.
Bytes exposed(std::uint8_t codec, const Bytes& found, std::uint8_t flags) {
  Bytes input = {codec};
  for (int lane = 0; lane < 2; ++lane) {
    input.insert(input.end(), {128, 0, flags});
    for (int at = 0; at < 2; ++at) {
      input.insert(input.end(), {1, static_cast<std::uint8_t>(found.size())});
      input.insert(input.end(), found.begin(), found.end());
    }
  }
  return input;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return std::fprintf(stderr, "usage: %s decoders|frames\n", arguments[0]), 2;
  const bool frames = std::strcmp(arguments[1], "frames") == 0;
  const Codecs codecs;
  for (std::size_t codec = 0; codec < codecs.size(); ++codec) {
    const Coder& coder = codecs[codec];
    const bool wide = codecs.wide(coder);
    if (frames && wide) continue;
    for (const std::size_t size : frames ? std::vector<std::size_t>{12} : std::vector<std::size_t>{1, 12, kLargest}) {
      const gq::Region region = {size, {0, 5, 1}, 0};
      for (const bool sum : {false, true}) {
        if (sum && !coder.sums) continue;
        const Bytes found = message(coder, wide, region, sum);
        const auto number = static_cast<std::uint8_t>(codec);
        for (int flags = 0; frames && coder.verbatim() && flags < 256; flags += flags == 7 ? 121 : 1) {
          Bytes input = exposed(number, found, static_cast<std::uint8_t>(flags));
          print(input);
          input.push_back(0);  // of another length: rank 0 forwards what it reads
          print(input);
          if (flags == 135) break;
        }
        print(frames ? for_frames(number, found) : for_decoders(number, region, found));
      }
    }
  }
  return 0;
}
