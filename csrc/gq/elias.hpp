// Elias' recursive (omega) code of the integers from 1 on, and the sparse form of QSGD: where the next level that is
// not zero lies, its sign, its size.
#pragma once
#include "gq/bitstream.hpp"
#include "gq/coded_wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// k >= 1; at most 43 bits for k < 2^32. There may be as many in the writer as BitWriter::kMost leaves room for.
static inline void put_elias(BitWriter& writer, std::uint32_t k) {
  const Pattern code = elias_of(k);
  writer.put(code.bits, code.length);
}

// 0 if it is no number below 2^32. Reads at most 45 bits.
static inline std::uint32_t take_elias(BitReader& reader) {
  std::uint32_t number = 1;
  while (reader.peek(1)) {
    if (number > 31) return 0;
    number = reader.take(int(number) + 1);
  }
  reader.skip(1);
  return number;
}

// The end of the stream.
static inline std::uint8_t* sparse_encode(const EliasCode& elias, const std::uint8_t* code, std::size_t n,
                                          std::uint8_t* out) {
  constexpr std::uint32_t near = 64;
  Pattern gaps[near], signed_place[256];  // of short gaps; of codes
  for (std::uint32_t gap = 1; gap < near; ++gap) gaps[gap] = elias_of(gap);
  for (int c = 0; c < 256; ++c) {
    const Pattern place = elias_of(elias.place[c] > 0 ? elias.place[c] : 1);
    signed_place[c] = {std::uint64_t(elias.negative[c]) << place.length | place.bits, place.length + 1};
  }
  BitWriter writer(out);
  std::size_t next = 0;  // behind the last level that is not zero
  const std::uint64_t zeros = 0x0101010101010101 * static_cast<std::uint8_t>(elias.zero);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint64_t others = 0;  // bytes that are not zero's code
    while (i + 8 <= n && !(others = load<std::uint64_t>(code + i) ^ zeros)) i += 8;
    if (others) i += static_cast<std::size_t>(__builtin_ctzll(others)) / 8;
    if (i == n) break;
    if (code[i] == elias.zero) continue;
    const auto gap = static_cast<std::uint32_t>(i + 1 - next);
    const Pattern before = gap < near ? gaps[gap] : elias_of(gap), place = signed_place[code[i]];
    writer.put(before.bits, before.length);
    if (gap >= near) writer.flush();
    writer.put(place.bits, place.length);
    writer.flush();
    next = i + 1;
  }
  put_elias(writer, static_cast<std::uint32_t>(n + 1 - next));  // a gap to behind the end
  return writer.finish();
}

// False for a malformed message.
static inline bool sparse_decode(const EliasCode& elias, const std::uint8_t* in, std::size_t nbytes, std::uint8_t* code,
                                 std::size_t n) {
  BitReader reader(in, nbytes);
  std::memset(code, elias.zero, n);
  for (std::size_t next = 0;;) {
    reader.refill();
    const std::size_t gap = take_elias(reader);
    if (gap == 0 || gap > n + 1 - next || reader.past_end()) return false;
    next += gap;
    if (next == n + 1) return reader.at_end();
    reader.refill();
    const bool negative = reader.take(1);
    const std::uint32_t place = take_elias(reader);
    if (place == 0 || place > elias.places[negative]) return false;
    code[next - 1] = elias.code_at[negative][place];
  }
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
