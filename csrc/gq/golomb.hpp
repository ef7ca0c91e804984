// Messages of adaptive with Golomb-Rice codes in place of entries: columns and their number as they are, then one byte,
// the parameter k, a uint32, the bytes of what follows, and a stream of bits (bitstream.hpp).
//
// Per entry, rows in order: the rows left out since the one before, their low k bits last: as many ones as the others
// say, a zero, the k bits; then the sign, 1 if positive. With k = kAsEntries the entries follow as they are.
#pragma once
#include "gq/adaptive_wire.hpp"
#include "gq/bitstream.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr int kAsEntries = 255, kGolombMost = 14;
constexpr std::size_t kGolombHeader = 1 + sizeof(std::uint32_t);

// visit(rows left out, positive) for the entries of all columns.
template <class Visit>
static inline void by_gaps(const std::uint8_t* wire, std::size_t columns, Visit visit) {
  const std::uint8_t* const entries = wire + headers_nbytes(columns);
  for (std::size_t column = 0; column < columns; ++column) {
    unsigned next = 0;
    for (std::size_t i = entry_offset(wire, column); i < entry_offset(wire, column + 1); ++i) {
      const unsigned entry = load<std::uint16_t>(entries + i * kEntry), row = entry >> 1;
      visit(row - next, entry & 1);
      next = row + 1;
    }
  }
}

// The parameter by which the codes of these entries are shortest, and their bits.
static inline int best_parameter(const std::uint8_t* wire, std::size_t columns, std::uint64_t& bits) {
  std::uint64_t ones[kGolombMost + 1] = {};
  by_gaps(wire, columns, [&](unsigned gap, unsigned) {
    for (int k = 0; k <= kGolombMost; ++k) ones[k] += gap >> k;
  });
  const std::uint64_t count = entry_offset(wire, columns);
  int best = 0;
  for (int k = 1; k <= kGolombMost; ++k)
    if (ones[k] + count * k < ones[best] + count * best) best = k;
  bits = ones[best] + count * (best + 2);
  return best;
}

static inline void put_gap(BitWriter& writer, unsigned gap, unsigned positive, int k) {
  unsigned ones = gap >> k;
  for (; ones >= 32; ones -= 32) {
    writer.put(0xffffffff, 32);
    writer.flush();
  }
  writer.put(((std::uint64_t(1) << ones) - 1) << 1, int(ones) + 1);
  writer.flush();
  writer.put((gap & ((1u << k) - 1)) << 1 | positive, k + 1);
  writer.flush();
}

// Turns the message of a region into `out`, whose bytes it returns: at most kGolombHeader more, and kStreamSlack are
// written behind.
static std::size_t golomb_encode(const std::uint8_t* wire, std::size_t columns, std::uint8_t* out) {
  const std::size_t headers = headers_nbytes(columns), entries = entry_offset(wire, columns) * kEntry;
  std::uint64_t bits = 0;
  const int k = best_parameter(wire, columns, bits);
  const bool shorter = (bits + 7) / 8 < entries;
  const std::size_t nbytes = shorter ? (bits + 7) / 8 : entries;
  std::memcpy(out, wire, headers);
  out[headers] = static_cast<std::uint8_t>(shorter ? k : kAsEntries);
  store(out + headers + 1, static_cast<std::uint32_t>(nbytes));
  std::uint8_t* const codes = out + headers + kGolombHeader;
  if (!shorter) {
    std::memcpy(codes, wire + headers, entries);
  } else {
    BitWriter writer(codes);
    by_gaps(wire, columns, [&](unsigned gap, unsigned positive) { put_gap(writer, gap, positive, k); });
    writer.finish();
  }
  return headers + kGolombHeader + nbytes;
}

// The bytes of the message of a region in `out` and of its entries, or false if it is malformed.
static bool golomb_sizes(const std::uint8_t* wire, std::size_t nbytes, std::size_t columns, std::size_t size,
                         std::size_t& coded, std::size_t& entries) {
  const std::size_t before = headers_nbytes(columns) + kGolombHeader;
  if (nbytes < before || entry_offset(wire, 0) != 0) return false;
  for (std::size_t column = 0; column < columns; ++column)
    if (entry_offset(wire, column) > entry_offset(wire, column + 1)) return false;
  const std::size_t codes = load<std::uint32_t>(wire + before - sizeof(std::uint32_t));
  entries = entry_offset(wire, columns);
  coded = before + codes;
  return codes <= nbytes - before && entries <= size && entries <= codes * 8;
}

// One entry's code; false if its row is too far down.
static inline bool take_gap(BitReader& reader, int k, unsigned& next, std::uint16_t& entry) {
  std::size_t row = next;
  reader.refill();
  while (reader.peek(32) == 0xffffffff) {
    reader.skip(32);
    row += std::size_t(32) << k;
    if (row >> 15) return false;
    reader.refill();
  }
  const int ones = __builtin_clz(~reader.peek(32));
  reader.skip(ones);
  reader.skip(1);
  reader.refill();
  const unsigned low = reader.take(k + 1);
  row += (std::size_t(ones) << k) + (low >> 1);
  if (row >> 15) return false;
  entry = static_cast<std::uint16_t>(row << 1 | (low & 1));
  next = static_cast<unsigned>(row) + 1;
  return true;
}

// The message of adaptive in `out`, from one that golomb_sizes has looked at and behind which kStreamSlack bytes may be
// read; false if it is malformed.
static bool golomb_decode(const std::uint8_t* wire, std::size_t columns, std::uint8_t* out) {
  const std::size_t headers = headers_nbytes(columns), entries = entry_offset(wire, columns) * kEntry;
  const std::size_t nbytes = load<std::uint32_t>(wire + headers + 1);
  const std::uint8_t* const codes = wire + headers + kGolombHeader;
  const int k = wire[headers];
  std::memcpy(out, wire, headers);
  out += headers;
  if (k == kAsEntries) {
    if (nbytes != entries) return false;
    std::memcpy(out, codes, entries);
    return true;
  }
  if (k > kGolombMost) return false;
  BitReader reader(codes, nbytes);
  for (std::size_t column = 0; column < columns; ++column) {
    unsigned next = 0;
    for (std::size_t i = entry_offset(wire, column); i < entry_offset(wire, column + 1); ++i, out += kEntry) {
      std::uint16_t entry = 0;
      if (!take_gap(reader, k, next, entry)) return false;
      store(out, entry);
    }
  }
  return reader.at_end();
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
