// The places of chosen elements as bytes, and values added at such places. A message has blocks of 65536 elements: the
// offsets of the chosen ones, or a bit for each element where that is shorter.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gq/kernels.hpp"
#include "gq/regions.hpp"

namespace gq {

// The bytes of `count` places, ascending and below `elements`.
std::size_t places_nbytes(const std::uint32_t* index, std::size_t count, std::size_t elements);

// Writes them; returns the bytes.
std::size_t places_write(const std::uint32_t* index, std::size_t count, std::size_t elements, std::uint8_t* out);

enum PlacesFault {
  kPlacesEndEarly = -1,
  kPlacesDoNotAscend = -2,
  kPlacesAreOthers = -3,
  kSparseOtherSize = -4,
  kSparseNotFinite = -5
};

// index := the places at the beginning of `wire`, `count` of them; returns their bytes, or a fault.
std::int64_t places_read(const std::uint8_t* wire, std::size_t nbytes, std::size_t elements, std::uint32_t* index,
                         std::size_t count);

// k different places below n, ascending, every set equally likely: place i that is drawn is floor(r n / 2^64), with r
// the 16 random bits of the elements 4i to 4i + 3 of the stream, lowest first; those that came before are passed over,
// until there are k, or, if those are fewer, the n - k that are left out.
void draw_places(const Stream& stream, std::uint64_t n, std::size_t k, std::int64_t* place);

// y[index[i]] += the i-th float32 of `values`, or y[index[i]] = that. False if a place is not below n: what comes after
// it is left out.
bool add_at(float* y, std::size_t n, const std::uint32_t* index, const std::uint8_t* values, std::size_t count);
bool put_at(float* y, std::size_t n, const std::uint32_t* index, const std::uint8_t* values, std::size_t count);

// --- messages of sparse codecs whose values are float32, see gqallreduce/coding/sparse.py and union.py ---

constexpr std::size_t kSparseHeader = 12;
constexpr std::uint32_t kSparseSum = 0x80000000, kSparseDense = 0x40000000;

// Writes the messages of chosen values: `counts` says how many are of each region, `index` where in it. r, if not null,
// := 0 there. Returns the bytes.
std::int64_t sparse_encode(const std::uint32_t* index, const float* value, const std::int64_t* counts, float* r,
                           std::uint8_t* wire, const Regions& regions);

// Writes the header of a region's message, whose bytes end at `end`; returns that.
std::uint8_t* sparse_seal(std::uint8_t* wire, std::size_t elements, std::uint32_t entries, std::uint8_t* end);

// y := scale * what messages stand for, or += it; `sums`: they may be sums. Returns their bytes, or a fault; y is
// changed then in regions before the one whose message is none.
std::int64_t sparse_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, float scale, bool add, bool sums,
                           const Regions& regions);

// The same of messages that may be sums, unscaled; places in y that are added to are added to a list, which may repeat
// and skip about, or `anywhere` is set.
std::int64_t sparse_decode_sum(const std::uint8_t* wire, std::size_t nbytes, float* y, bool add, const Regions& regions,
                               std::vector<std::uint32_t>& touched, bool& anywhere);

// Writes the message of a sum y, which is zero but at these places, in order; where that is shorter, with all of its
// elements. `entries` grows by the values sent. Returns the bytes.
std::int64_t sparse_encode_sum(const std::uint32_t* places, const float* values, std::size_t count, const float* y,
                               std::uint8_t* wire, const Regions& regions, std::uint64_t& entries);

}  // namespace gq
