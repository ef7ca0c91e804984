// Huffman codes of a section's own codes: how often each occurs, the lengths of their patterns, the patterns.
#pragma once
#include "gq/coded_wire.hpp"
#include "gq/kernels.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr int kLongestHuffman = 12;

// count[c] = how often code c occurs, for 2^bits codes.
static inline void count_codes(const std::uint8_t* code, std::size_t n, std::uint32_t* count) {
  std::uint32_t part[4][256] = {};  // equal neighbours would wait for each other's sums
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int k = 0; k < 4; ++k) ++part[k][code[i + k]];
  for (; i < n; ++i) ++part[0][code[i]];
  for (int c = 0; c < 256; ++c) count[c] = part[0][c] + part[1][c] + part[2][c] + part[3][c];
}

// The codes that occur, the rarest first, equally rare ones ascending; returns how many.
static inline int by_count(const std::uint32_t* count, std::uint8_t* order) {
  std::uint64_t key[256];
  int used = 0;
  for (int c = 0; c < 256; ++c)
    if (count[c]) key[used++] = std::uint64_t(count[c]) << 8 | std::uint64_t(c);
  for (int gap = 40; gap > 0; gap = gap == 40 ? 13 : gap == 13 ? 4 : gap == 4 ? 1 : 0)  // Shell's sort
    for (int i = gap; i < used; ++i) {
      const std::uint64_t mine = key[i];
      int to = i;
      for (; to >= gap && key[to - gap] > mine; to -= gap) key[to] = key[to - gap];
      key[to] = mine;
    }
  for (int i = 0; i < used; ++i) order[i] = static_cast<std::uint8_t>(key[i]);
  return used;
}

// how_many[d] = leaves at depth d, for `used` >= 2 leaves of these weights; depths above the limit count as the limit.
static inline void huffman_depths(const std::uint32_t* count, const std::uint8_t* order, int used, int* how_many) {
  std::uint64_t weight[512];
  int parent[512];
  for (int i = 0; i < used; ++i) weight[i] = count[order[i]];
  int leaf = 0, inner = used;  // the lightest leaf and inner node that have no parent
  for (int made = used; made < 2 * used - 1; ++made) {
    weight[made] = 0;
    for (int child = 0; child < 2; ++child) {
      const bool take_leaf = leaf < used && (inner >= made || weight[leaf] <= weight[inner]);
      const int taken = take_leaf ? leaf++ : inner++;
      weight[made] += weight[taken];
      parent[taken] = made;
    }
  }
  int depth[512];
  depth[2 * used - 2] = 0;
  for (int node = 2 * used - 3; node >= 0; --node) {
    depth[node] = depth[parent[node]] + 1;
    if (node < used) ++how_many[depth[node] < kLongestHuffman ? depth[node] : kLongestHuffman];
  }
}

// Leaves that were too deep have moved up: others move down until all patterns fit, Sum 2^-depth = 1.
static inline void make_patterns_fit(int* how_many) {
  std::uint32_t total = 0;  // in units of 2^-kLongestHuffman
  for (int depth = 1; depth <= kLongestHuffman; ++depth)
    total += std::uint32_t(how_many[depth]) << (kLongestHuffman - depth);
  for (; total > 1u << kLongestHuffman; --total) {
    --how_many[kLongestHuffman];
    int depth = kLongestHuffman - 1;
    while (how_many[depth] == 0) --depth;
    --how_many[depth];
    how_many[depth + 1] += 2;
  }
}

// length[c] for the codes that occur, 0 for others; two codes at least have one.
static inline void huffman_lengths(const std::uint32_t* count, std::uint8_t* length) {
  std::uint8_t order[256];
  std::memset(length, 0, 256);
  int used = by_count(count, order);
  if (used == 1) {
    length[order[0]] = length[order[0] ^ 1] = 1;
    return;
  }
  int how_many[kLongestHuffman + 1] = {};
  huffman_depths(count, order, used, how_many);
  make_patterns_fit(how_many);
  for (int depth = 1; depth <= kLongestHuffman; ++depth)
    for (int k = 0; k < how_many[depth]; ++k) length[order[--used]] = static_cast<std::uint8_t>(depth);
}

// The patterns of these lengths: they ascend with length and code. False if they do not fill all that there are.
static inline bool huffman_patterns(const std::uint8_t* length, PrefixCode& prefix) {
  std::uint32_t next = 0;
  prefix.longest = 0;
  std::memcpy(prefix.length, length, 256);
  for (int depth = 1; depth <= kLongestHuffman; ++depth) {
    next <<= 1;
    for (int c = 0; c < 256; ++c) {
      if (length[c] != depth) continue;
      if (next >> depth) return false;
      prefix.pattern[c] = static_cast<std::uint16_t>(next++);
      prefix.longest = depth;
    }
  }
  return prefix.longest > 0 && next == 1u << kLongestHuffman;
}

// Bits that these codes take.
static inline std::uint64_t prefix_bits(const std::uint32_t* count, const std::uint8_t* length) {
  std::uint64_t bits = 0;
  for (int c = 0; c < 256; ++c) bits += std::uint64_t(count[c]) * length[c];
  return bits;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
