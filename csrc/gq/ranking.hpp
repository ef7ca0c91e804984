// The order in which values are selected: by magnitude, as the integer of its bits.
#pragma once
#include "gq/standard.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

// How many values of a column are kept.
inline std::size_t share_of(std::size_t height, std::size_t pi) { return height / pi ? height / pi : 1; }

// Which values are ranked: key_of(v) orders their magnitudes, and is <= 0 for a zero and for a value not ranked.
struct Side {
  std::uint32_t flip, mask;
};

constexpr Side kBothSigns = {0, kMagnitude};
constexpr Side kPositive = {0, ~0u};
constexpr Side kNegative = {~kMagnitude, ~0u};

inline Side side_of(int sign) { return sign == 0 ? kBothSigns : sign > 0 ? kPositive : kNegative; }

inline std::int32_t key_of(float v, Side side) {
  return static_cast<std::int32_t>((bits_of(v) ^ side.flip) & side.mask);
}

}  // namespace
}  // namespace gq
