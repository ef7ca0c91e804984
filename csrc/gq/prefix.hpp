// Prefix codes: each code of a level is a pattern of bits, none of which begins another.
//
// Codes are written in four streams, a quarter of them each, so that four can be read at once.
#pragma once
#include "gq/bitstream.hpp"
#include "gq/coded_wire.hpp"
#include "gq/huffman.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// Where stream `number` begins.
static inline std::size_t stream_begin(std::size_t n, std::size_t number) {
  const std::size_t begin = (n + kStreams - 1) / kStreams * number;
  return begin < n ? begin : n;
}

// Patterns with their lengths in the high byte: of each code, or of each two codes below 16, the second one in the high
// half of their number.
static inline std::uint32_t pattern_of(const PrefixCode& prefix, int code) {
  return std::uint32_t(prefix.length[code]) << 24 | prefix.pattern[code];
}

static inline std::uint32_t pattern_of_two(const PrefixCode& prefix, int first, int second) {
  const int length = prefix.length[first] + prefix.length[second];
  return std::uint32_t(length) << 24 | std::uint32_t(prefix.pattern[first]) << prefix.length[second] |
         prefix.pattern[second];
}

static inline void put_pattern(BitWriter& writer, std::uint32_t pattern) {
  writer.put(pattern & 0xffffff, int(pattern >> 24));
}

// `pattern` has two codes in each entry if kTwo. A flush follows each kAtOnce entries.
template <bool kTwo, int kAtOnce>
static inline std::uint8_t* put_codes(const std::uint32_t* pattern, const PrefixCode& prefix, const std::uint8_t* code,
                                      std::size_t n, std::uint8_t* out) {
  constexpr std::size_t step = kTwo ? 2 : 1;
  BitWriter writer(out);
  std::size_t i = 0;
  for (; i + kAtOnce * step <= n; i += kAtOnce * step) {
    for (std::size_t k = 0; k < kAtOnce; ++k) {
      const std::uint8_t* const at = code + i + k * step;
      const unsigned number = kTwo ? load<std::uint16_t>(at) : *at;
      put_pattern(writer, pattern[kTwo ? (number | number >> 4) & 255 : number]);
    }
    writer.flush();
  }
  for (; i < n; ++i) {
    put_pattern(writer, pattern_of(prefix, code[i]));
    writer.flush();
  }
  return writer.finish();
}

static inline std::uint8_t* put_stream(const std::uint32_t* pattern, const PrefixCode& prefix, bool two,
                                       const std::uint8_t* code, std::size_t n, std::uint8_t* out) {
  if (two && prefix.longest <= 7) return put_codes<true, 4>(pattern, prefix, code, n, out);
  if (two && prefix.longest <= 12) return put_codes<true, 2>(pattern, prefix, code, n, out);
  if (prefix.longest <= 14) return put_codes<false, 4>(pattern, prefix, code, n, out);
  return put_codes<false, 3>(pattern, prefix, code, n, out);
}

// The end of what is written.
static inline std::uint8_t* prefix_encode(const PrefixCode& prefix, int bits, const std::uint8_t* code, std::size_t n,
                                          std::uint8_t* out) {
  std::uint32_t pattern[256];
  const bool two = bits <= 4 && prefix.longest <= 12;
  for (int c = 0; c < 256; ++c) pattern[c] = two ? pattern_of_two(prefix, c & 15, c >> 4) : pattern_of(prefix, c);
  std::uint8_t* const sizes = out;
  out += sizeof(std::uint32_t) * (kStreams - 1);
  for (std::size_t number = 0; number < kStreams; ++number) {
    const std::size_t begin = stream_begin(n, number), height = stream_begin(n, number + 1) - begin;
    std::uint8_t* const end = put_stream(pattern, prefix, two, code + begin, height, out);
    if (number + 1 < kStreams) store(sizes + sizeof(std::uint32_t) * number, static_cast<std::uint32_t>(end - out));
    out = end;
  }
  return out;
}

// For every beginning of `longest` bits, the code whose pattern it begins with, and the length of that in the high
// byte; kNoPattern if there is none.
constexpr std::uint16_t kNoPattern = 0x8100;  // read as a pattern of one bit, so that a reader goes on

static inline void fill_table(const PrefixCode& prefix, std::uint16_t* table) {
  for (std::size_t place = 0; place < std::size_t(1) << prefix.longest; ++place) table[place] = kNoPattern;
  for (int code = 0; code < 256; ++code) {
    const int length = prefix.length[code], left = prefix.longest - length;
    if (length == 0) continue;
    std::uint16_t* const first = table + (std::size_t(prefix.pattern[code]) << left);
    for (std::size_t place = 0; place < std::size_t(1) << left; ++place)
      first[place] = static_cast<std::uint16_t>(length << 8 | code);
  }
}

template <int kAtOnce>
static inline std::size_t take_codes(const std::uint16_t* table, int longest, BitReader* reader,
                                     std::uint8_t* const* code, std::size_t height, std::uint16_t& seen) {
  BitReader first = reader[0], second = reader[1], third = reader[2], fourth = reader[3];  // in registers
  std::size_t i = 0;
  const auto take = [&](BitReader& from, std::size_t stream, std::size_t at) {
    const std::uint16_t entry = table[from.peek(longest)];
    from.skip(entry >> 8 & 0x7f);
    seen |= entry;
    code[stream][at] = static_cast<std::uint8_t>(entry);
  };
  for (; i + kAtOnce <= height; i += kAtOnce) {
    first.refill(), second.refill(), third.refill(), fourth.refill();
    for (int k = 0; k < kAtOnce; ++k) {
      take(first, 0, i + k);
      take(second, 1, i + k);
      take(third, 2, i + k);
      take(fourth, 3, i + k);
    }
  }
  reader[0] = first, reader[1] = second, reader[2] = third, reader[3] = fourth;
  return i;
}

// False for a malformed message.
static inline bool prefix_decode(const std::uint16_t* table, int longest, const std::uint8_t* in, std::size_t nbytes,
                                 std::uint8_t* code, std::size_t n) {
  constexpr std::size_t header = sizeof(std::uint32_t) * (kStreams - 1);
  if (nbytes < header) return false;
  const std::uint8_t* at = in + header;
  std::size_t left = nbytes - header;
  BitReader reader[kStreams] = {{at, 0}, {at, 0}, {at, 0}, {at, 0}};
  std::uint8_t* to[kStreams];
  for (std::size_t number = 0; number < kStreams; ++number) {
    const std::size_t size = number + 1 < kStreams ? load<std::uint32_t>(in + sizeof(std::uint32_t) * number) : left;
    if (size > left) return false;
    reader[number] = BitReader(at, size);
    to[number] = code + stream_begin(n, number);
    at += size;
    left -= size;
  }
  std::uint16_t seen = 0;
  const std::size_t together = n - stream_begin(n, kStreams - 1);  // codes of the shortest stream
  std::size_t done;
  if (longest <= 7)
    done = take_codes<8>(table, longest, reader, to, together, seen);
  else if (longest <= 14)
    done = take_codes<4>(table, longest, reader, to, together, seen);
  else
    done = take_codes<3>(table, longest, reader, to, together, seen);
  for (std::size_t number = 0; number < kStreams; ++number) {
    for (std::size_t i = done; i < stream_begin(n, number + 1) - stream_begin(n, number); ++i) {
      reader[number].refill();
      const std::uint16_t entry = table[reader[number].peek(longest)];
      reader[number].skip(entry >> 8 & 0x7f);
      seen |= entry;
      to[number][i] = static_cast<std::uint8_t>(entry);
    }
    if (!reader[number].at_end()) return false;
  }
  return seen < 0x8000;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
