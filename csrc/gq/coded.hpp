// The codes of a section by an entropy code and back: see coded_wire.hpp for the forms.
#pragma once
#include "gq/coded_wire.hpp"
#include "gq/elias.hpp"
#include "gq/huffman.hpp"
#include "gq/prefix.hpp"
#include "gq/rans.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// The end of the lengths of the patterns of 2^bits codes.
static inline std::uint8_t* put_lengths(const std::uint8_t* length, int bits, std::uint8_t* out) {
  for (int c = 0; c < 1 << bits; c += 2) *out++ = static_cast<std::uint8_t>(length[c] | length[c + 1] << 4);
  return out;
}

static inline std::uint8_t* huffman_encode(const std::uint32_t* count, int bits, const std::uint8_t* code,
                                           std::size_t n, std::uint8_t* out) {
  std::uint8_t length[256];
  PrefixCode prefix;
  huffman_lengths(count, length);
  huffman_patterns(length, prefix);
  return prefix_encode(prefix, bits, code, n, put_lengths(length, bits, out));
}

// Codes by one of two forms: where at least half of the levels are zero, whichever is shorter; else the one that is
// faster.
static inline std::uint8_t* elias_encode(const EliasCode& elias, int bits, const std::uint32_t* count,
                                         const std::uint8_t* code, std::size_t n, std::uint8_t* out, Form& form) {
  form = kByElias;
  if (elias.zero >= 0 && count[elias.zero] >= n / 2) {
    std::uint8_t* const end = sparse_encode(elias, code, n, out);
    if (std::uint64_t(end - out) * 8 <= prefix_bits(count, elias.dense.length)) return end;
  }
  form = kByPrefix;
  return prefix_encode(elias.dense, bits, code, n, out);
}

// Writes the form and the codes, with scales of so many bytes between them that are there already; returns the bytes of
// all. `out` has coder_room(n) bytes for codes.
static std::size_t coded_encode(const Entropy& entropy, const std::uint8_t* code, std::size_t n, std::size_t scales,
                                std::uint8_t* out) {
  std::uint32_t count[256];
  count_codes(code, n, count);
  std::uint8_t* const codes = out + 1 + scales;
  std::uint8_t* end = codes;
  Form form = kByPrefix;
  if (entropy.coding == Coding::kHuffman) {
    end = huffman_encode(count, entropy.bits, code, n, codes);
  } else if (entropy.coding == Coding::kElias) {
    end = elias_encode(*entropy.elias, entropy.bits, count, code, n, codes, form);
  } else {
    form = kByRans;
    end = rans_encode(count, entropy.bits, code, n, codes, codes + coder_room(n) - kCoderSlack);
  }
  *out = form;
  return static_cast<std::size_t>(end - out);
}

static inline bool huffman_decode(int bits, const std::uint8_t* in, std::size_t nbytes, std::uint8_t* code,
                                  std::size_t n) {
  const std::size_t header = (std::size_t(1) << bits) / 2;
  std::uint8_t length[256] = {};
  std::uint16_t table[1 << kLongestHuffman];
  PrefixCode prefix;
  if (nbytes < header) return false;
  for (std::size_t c = 0; c < 2 * header; ++c) {
    length[c] = in[c / 2] >> (c % 2 ? 4 : 0) & 15;
    if (length[c] > kLongestHuffman) return false;
  }
  if (!huffman_patterns(length, prefix)) return false;
  fill_table(prefix, table);
  return prefix_decode(table, prefix.longest, in + header, nbytes - header, code, n);
}

// Codes of a section from `in`, behind which kCoderSlack bytes may be read; false for a malformed message.
static bool coded_decode(const Entropy& entropy, int form, const std::uint8_t* in, std::size_t nbytes,
                         std::uint8_t* code, std::size_t n) {
  if (form == kByPrefix && entropy.coding == Coding::kHuffman) return huffman_decode(entropy.bits, in, nbytes, code, n);
  if (form == kByPrefix && entropy.coding == Coding::kElias)
    return prefix_decode(entropy.table, entropy.elias->dense.longest, in, nbytes, code, n);
  if (form == kByElias && entropy.coding == Coding::kElias && entropy.elias->zero >= 0)
    return sparse_decode(*entropy.elias, in, nbytes, code, n);
  if (form == kByRans && entropy.coding == Coding::kRans) return rans_decode(entropy.bits, in, nbytes, code, n);
  return false;
}

static void prefix_table(const PrefixCode& prefix, std::uint16_t* table) { fill_table(prefix, table); }

}  // namespace GQ_NAMESPACE
}  // namespace gq
