// The doors to Golomb-Rice codes of adaptive's entries.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/regions.hpp"

namespace gq {

// The most bytes that messages of so many bytes become.
std::size_t golomb_bound(const Regions& regions, std::size_t nbytes);

// Turns messages of adaptive into shorter ones in `out`, which has room for the bound; returns their bytes, -1 if these
// are no messages.
std::int64_t golomb_encode(const std::uint8_t* wire, std::size_t nbytes, std::uint8_t* out, const Regions& regions);

// Of shorter messages at the beginning of `wire`: their bytes, how many entries they have, and the bytes of the
// messages of adaptive.
struct GolombSizes {
  std::int64_t coded;  // -1 if one is malformed
  std::size_t entries, nbytes;
};
GolombSizes golomb_sizes(const std::uint8_t* wire, std::size_t nbytes, const Regions& regions);

// Messages of adaptive in `out`, from those whose sizes have been found; kStreamSlack bytes behind them may be read.
// False if one is malformed.
bool golomb_decode(const std::uint8_t* wire, std::uint8_t* out, const Regions& regions);

}  // namespace gq
