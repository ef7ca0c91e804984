// Level codecs with an entropy code: the codes of the levels take as many bits as they are rare.
//
// Wire of a region: if it is rotated the key (buckets.hpp); its buckets in sections of max(1, kSectionCodes / bucket)
// each. Per section a uint32, its bytes; then the sections. A section is one byte, its form, and
//   0: the buckets as without an entropy code, for a section that would not get shorter;
//   else the scales of all its buckets, then their codes, by
//   1: a prefix code. Huffman: first the length of each code's pattern, 4 bits each, low half first; the patterns
//      ascend with length and code. Elias: see EliasCode. Then three uint32, bytes of streams, and four streams: of a
//      quarter of the codes each, the last one of what is left.
//   2: Elias, sparse (elias.hpp).
//   3: rANS (rans.hpp).
#pragma once
#include "gq/kernels.hpp"
#include "gq/standard.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

constexpr std::size_t kSectionCodes = 32768;
constexpr std::size_t kSizeField = sizeof(std::uint32_t);
constexpr std::size_t kStreams = 4;
constexpr std::size_t kCoderSlack = 64;  // bytes behind a section that coders may read or write

enum Form : std::uint8_t { kAsWithout = 0, kByPrefix = 1, kByElias = 2, kByRans = 3 };

// The bits of a pattern, in the low bits of a number; the first of them is the highest.
struct Pattern {
  std::uint64_t bits;
  int length;
};

// Elias' recursive code of k >= 1: binary numbers, each the length of the next less one, and a zero.
inline Pattern elias_of(std::uint32_t k) {
  Pattern code = {0, 1};
  while (k > 1) {
    const int width = 32 - __builtin_clz(k);
    code.bits |= std::uint64_t(k) << code.length;
    code.length += width;
    k = static_cast<std::uint32_t>(width - 1);
  }
  return code;
}

// Room in which any section of n codes and its scales can be coded; more than it takes without an entropy code.
inline std::size_t coder_room(std::size_t n) { return 2 * n + 4096; }

}  // namespace
}  // namespace gq
