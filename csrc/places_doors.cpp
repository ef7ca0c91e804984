#include "gq/places_doors.hpp"

#include <algorithm>
#include <cstring>

#include "gq/door.hpp"
#include "gq/wire.hpp"

namespace gq {

namespace {

constexpr std::size_t kBlock = 65536, kAhead = 24;
constexpr std::uint16_t kBits = 0xffff;

// Of one block: how many elements it has, and its places.
struct Block {
  std::size_t size;
  const std::uint32_t *begin, *end;

  std::size_t count() const { return static_cast<std::size_t>(end - begin); }
  std::size_t bitmap() const { return (size + 7) / 8; }
  std::size_t nbytes() const { return std::min(2 * count(), bitmap()); }
};

template <class Use>
void by_blocks(const std::uint32_t* index, std::size_t count, std::size_t elements, Use use) {
  const std::uint32_t *begin = index, *const last = index + count;
  for (std::size_t first = 0; first < elements; first += kBlock) {
    const std::size_t size = std::min(kBlock, elements - first);
    const std::uint32_t* end =
        first + size == elements ? last : std::lower_bound(begin, last, std::uint32_t(first + size));
    use(Block{size, begin, end});
    begin = end;
  }
}

std::uint8_t* write_block(const Block& block, std::uint8_t* out) {
  const bool bits = 2 * block.count() > block.bitmap();
  store(out, bits ? kBits : static_cast<std::uint16_t>(block.count()));
  out += 2;
  if (!bits) {
    for (const std::uint32_t* at = block.begin; at < block.end; ++at, out += 2)
      store(out, static_cast<std::uint16_t>(*at % kBlock));
    return out;
  }
  std::memset(out, 0, block.bitmap());
  for (const std::uint32_t* at = block.begin; at < block.end; ++at)
    out[*at % kBlock / 8] |= static_cast<std::uint8_t>(1 << *at % 8);
  return out + block.bitmap();
}

// What each has behind it `ahead` places is fetched, since most lie in cache lines of their own.
template <class Use>
bool at_places(float* y, std::size_t n, const std::uint32_t* index, std::size_t count, Use use) {
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count && index[i + kAhead] < n) __builtin_prefetch(y + index[i + kAhead], 1);
    if (index[i] >= n) return false;
    use(y[index[i]], i);
  }
  return true;
}

// Do n offsets of 16 bits ascend, below `size`? Without an early end, so that many are compared at once.
bool ascend(const std::uint8_t* offsets, std::size_t n, std::size_t size) {
  std::uint16_t bad = 0;
  for (std::size_t i = 1; i < n; ++i)
    bad |= load<std::uint16_t>(offsets + 2 * i) <= load<std::uint16_t>(offsets + 2 * i - 2) ? 1 : 0;
  return !bad && (n == 0 || load<std::uint16_t>(offsets + 2 * n - 2) < size);
}

std::size_t count_bits(const std::uint8_t* bits, std::size_t nbytes) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < nbytes; ++i) count += static_cast<std::size_t>(__builtin_popcount(bits[i]));
  return count;
}

// Bytes of the places of `count` of so many elements, or a fault: all is checked before anything is used.
std::int64_t check_places(const std::uint8_t* wire, std::size_t nbytes, std::size_t elements, std::size_t count) {
  const std::uint8_t *at = wire, *const end = wire + nbytes;
  std::size_t found = 0;
  for (std::size_t first = 0; first < elements; first += kBlock) {
    const std::size_t size = std::min(kBlock, elements - first);
    if (end - at < 2) return kPlacesEndEarly;
    const auto header = load<std::uint16_t>(at);
    at += 2;
    const bool bits = header == kBits;
    const std::size_t body = bits ? (size + 7) / 8 : 2 * std::size_t(header);
    if (static_cast<std::size_t>(end - at) < body) return kPlacesEndEarly;
    if (bits ? size % 8 && at[body - 1] >> size % 8 : !ascend(at, header, size)) return kPlacesDoNotAscend;
    found += bits ? count_bits(at, body) : header;
    at += body;
  }
  return found == count ? at - wire : std::int64_t{kPlacesAreOthers};
}

// Calls block(first, size) before the places of each block, then use(place) for each of them, ascending.
template <class Block, class Use>
void by_places(const std::uint8_t* wire, std::size_t elements, Block block, Use use) {
  for (std::size_t first = 0; first < elements; first += kBlock) {
    const std::size_t size = std::min(kBlock, elements - first);
    const auto header = load<std::uint16_t>(wire);
    wire += 2;
    block(first, size);
    if (header != kBits) {
      for (std::size_t i = 0; i < header; ++i) use(first + load<std::uint16_t>(wire + 2 * i));
      wire += 2 * std::size_t(header);
      continue;
    }
    const std::size_t nbytes = (size + 7) / 8;
    for (std::size_t byte = 0; byte < nbytes; byte += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, wire + byte, std::min<std::size_t>(8, nbytes - byte));
      for (; word; word &= word - 1) use(first + 8 * byte + static_cast<std::size_t>(__builtin_ctzll(word)));
    }
    wire += nbytes;
  }
}

// Calls use(place) for places as they are drawn, until it has returned true `count` times.
template <class Use>
void by_draws(const Stream& stream, std::uint64_t n, std::size_t count, Use use) {
  constexpr std::size_t kDraws = 128;
  std::uint16_t bits[4 * kDraws];
  for (std::uint64_t first = 0; count > 0; first += kDraws) {
    kernels().random16(stream, 4 * first, 4 * kDraws, bits);
    for (std::size_t i = 0; i < kDraws && count > 0; ++i) {
      const auto r = load<std::uint64_t>(bits + 4 * i);
      if (use(static_cast<std::uint64_t>(static_cast<unsigned __int128>(r) * n >> 64))) --count;
    }
  }
}

constexpr std::uint64_t kRarely = 1024;  // elements for each place that is drawn, above which a bit for each costs more

// `few` places in a bit for each of n elements; those that are set, or are not, are written.
void draw_into_bits(const Stream& stream, std::uint64_t n, std::size_t few, bool written, std::int64_t* place) {
  std::vector<std::uint64_t> bits((n + 63) / 64);
  by_draws(stream, n, few, [&](std::uint64_t at) {
    const std::uint64_t before = bits[at / 64], bit = std::uint64_t{1} << at % 64;
    bits[at / 64] = before | bit;
    return !(before & bit);
  });
  for (std::size_t i = 0; i < bits.size(); ++i) {
    std::uint64_t word = written ? bits[i] : ~bits[i];
    if (i + 1 == bits.size() && n % 64) word &= (std::uint64_t{1} << n % 64) - 1;
    for (; word; word &= word - 1) *place++ = static_cast<std::int64_t>(64 * i) + __builtin_ctzll(word);
  }
}

// The same in a table of those that have been drawn.
void draw_into_table(const Stream& stream, std::uint64_t n, std::size_t few, std::int64_t* place) {
  std::size_t size = 16;
  while (size < 2 * few) size *= 2;
  std::vector<std::uint64_t> table(size);  // place + 1, 0 where there is none
  std::int64_t* end = place;
  by_draws(stream, n, few, [&](std::uint64_t at) {
    std::size_t slot = at * 0x9E3779B97F4A7C15u >> 32 & (size - 1);
    for (; table[slot]; slot = (slot + 1) & (size - 1))
      if (table[slot] == at + 1) return false;
    table[slot] = at + 1;
    *end++ = static_cast<std::int64_t>(at);
    return true;
  });
  std::sort(place, end);
}

bool values_are_finite(const std::uint8_t* values, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, load<std::uint32_t>(values + 4 * i) & kMagnitude);
  return largest < kInfinity;
}

// The message of a region whose values are float32: where its places (null for all elements) and values are.
struct SparseMessage {
  const std::uint8_t *places, *values;
  std::size_t entries, nbytes;
};

// Bytes of the message, or a fault.
std::int64_t open(const std::uint8_t* wire, std::size_t nbytes, std::size_t elements, bool sums, SparseMessage& found) {
  if (nbytes < kSparseHeader) return kPlacesEndEarly;
  const auto size = load<std::uint32_t>(wire), entries = load<std::uint32_t>(wire + 4),
             body = load<std::uint32_t>(wire + 8);
  const bool sum = sums && entries >= kSparseSum, dense = sum && entries & kSparseDense;
  const std::size_t count = sum ? entries & ~(kSparseSum | kSparseDense) : entries;
  if (size != elements) return kSparseOtherSize;
  if (nbytes - kSparseHeader < body) return kPlacesEndEarly;
  const std::int64_t places = dense ? 0 : check_places(wire + kSparseHeader, body, elements, count);
  if (places < 0) return places;
  if ((dense && count != elements) || body != static_cast<std::size_t>(places) + 4 * count) return kPlacesAreOthers;
  const std::uint8_t* const begin = wire + kSparseHeader;
  if (!values_are_finite(begin + places, count)) return kSparseNotFinite;
  found = {dense ? nullptr : begin, begin + places, count, kSparseHeader + body};
  return static_cast<std::int64_t>(found.nbytes);
}

// As sparse_decode; touch(place) is called for each place that is added to, touch_all() where all of a region are.
template <class Touch, class TouchAll>
std::int64_t decode_sparse(const std::uint8_t* wire, std::size_t nbytes, float* y, float scale, bool add, bool sums,
                           const Regions& regions, Touch touch, TouchAll touch_all) {
  const FloatGuard guard;
  std::size_t at = 0;
  std::int64_t fault = 0;
  by_regions(regions, [&](const Region& region, std::size_t place) {
    SparseMessage message;
    if (fault == 0) fault = std::min<std::int64_t>(0, open(wire + at, nbytes - at, region.size, sums, message));
    if (fault) return 0;
    at += message.nbytes;
    float* const here = y + place;
    const std::uint8_t* value = message.values;
    const auto next = [&] {
      value += 4;
      return scale * load<float>(value - 4);
    };
    if (!message.places) {
      touch_all();
      for (std::size_t i = 0; i < region.size; ++i) here[i] = (add ? here[i] : 0.0f) + next();
    } else if (add) {
      by_places(
          message.places, region.size, [](std::size_t, std::size_t) {},
          [&](std::size_t i) {
            here[i] += next();
            touch(place + i);
          });
    } else {
      by_places(
          message.places, region.size,
          [&](std::size_t first, std::size_t size) { std::fill_n(here + first, size, 0.0f); },
          [&](std::size_t i) {
            here[i] = 0.0f + next();  // no -0
            touch(place + i);
          });
    }
    return 0;
  });
  return fault ? fault : static_cast<std::int64_t>(at);
}

}  // namespace

std::size_t places_nbytes(const std::uint32_t* index, std::size_t count, std::size_t elements) {
  std::size_t nbytes = 0;
  by_blocks(index, count, elements, [&](const Block& block) { nbytes += 2 + block.nbytes(); });
  return nbytes;
}

std::size_t places_write(const std::uint32_t* index, std::size_t count, std::size_t elements, std::uint8_t* out) {
  std::uint8_t* at = out;
  by_blocks(index, count, elements, [&](const Block& block) { at = write_block(block, at); });
  return static_cast<std::size_t>(at - out);
}

std::int64_t places_read(const std::uint8_t* wire, std::size_t nbytes, std::size_t elements, std::uint32_t* index,
                         std::size_t count) {
  const std::int64_t used = check_places(wire, nbytes, elements, count);
  if (used < 0) return used;
  by_places(
      wire, elements, [](std::size_t, std::size_t) {},
      [&](std::size_t place) { *index++ = static_cast<std::uint32_t>(place); });
  return used;
}

void draw_places(const Stream& stream, std::uint64_t n, std::size_t k, std::int64_t* place) {
  const bool written = k <= n - k;
  if (written && n / kRarely > k)
    draw_into_table(stream, n, k, place);
  else
    draw_into_bits(stream, n, written ? k : n - k, written, place);
}

bool add_at(float* y, std::size_t n, const std::uint32_t* index, const std::uint8_t* values, std::size_t count) {
  const FloatGuard guard;
  return at_places(y, n, index, count, [&](float& at, std::size_t i) { at += load<float>(values + 4 * i); });
}

bool put_at(float* y, std::size_t n, const std::uint32_t* index, const std::uint8_t* values, std::size_t count) {
  return at_places(y, n, index, count, [&](float& at, std::size_t i) { at = load<float>(values + 4 * i); });
}

std::uint8_t* sparse_seal(std::uint8_t* wire, std::size_t elements, std::uint32_t entries, std::uint8_t* end) {
  store(wire, static_cast<std::uint32_t>(elements));
  store(wire + 4, entries);
  store(wire + 8, static_cast<std::uint32_t>(end - wire - kSparseHeader));
  return end;
}

std::int64_t sparse_encode(const std::uint32_t* index, const float* value, const std::int64_t* counts, float* r,
                           std::uint8_t* wire, const Regions& regions) {
  std::uint8_t* at = wire;
  by_regions(regions, [&](const Region& region, std::size_t place) {
    const auto count = static_cast<std::size_t>(*counts++);
    std::uint8_t* const values = at + kSparseHeader + places_write(index, count, region.size, at + kSparseHeader);
    if (count) std::memcpy(values, value, 4 * count);
    if (r)
      for (std::size_t i = 0; i < count; ++i) r[place + index[i]] = 0;
    at = sparse_seal(at, region.size, static_cast<std::uint32_t>(count), values + 4 * count);
    index += count;
    value += count;
    return 0;
  });
  return at - wire;
}

std::int64_t sparse_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, float scale, bool add, bool sums,
                           const Regions& regions) {
  return decode_sparse(wire, nbytes, y, scale, add, sums, regions, [](std::size_t) {}, [] {});
}

std::int64_t sparse_decode_sum(const std::uint8_t* wire, std::size_t nbytes, float* y, bool add, const Regions& regions,
                               std::vector<std::uint32_t>& touched, bool& anywhere) {
  return decode_sparse(
      wire, nbytes, y, 1, add, true, regions,
      [&](std::size_t place) {
        if (!anywhere) touched.push_back(static_cast<std::uint32_t>(place));
      },
      [&] { anywhere = true; });
}

std::int64_t sparse_encode_sum(const std::uint32_t* places, const float* values, std::size_t count, const float* y,
                               std::uint8_t* wire, const Regions& regions, std::uint64_t& entries) {
  std::uint8_t* at = wire;
  std::size_t first = 0;
  std::vector<std::uint32_t> mine;
  by_regions(regions, [&](const Region& region, std::size_t place) {
    std::size_t last = first;
    while (last < count && places[last] < place + region.size) ++last;
    mine.assign(places + first, places + last);
    for (std::uint32_t& each : mine) each -= static_cast<std::uint32_t>(place);
    const bool dense = places_nbytes(mine.data(), mine.size(), region.size) + 4 * mine.size() > 4 * region.size;
    const float* const sent = dense ? y + place : values + first;
    const std::size_t n = dense ? region.size : mine.size();
    std::uint8_t* body = at + kSparseHeader;
    if (!dense) body += places_write(mine.data(), n, region.size, body);
    if (n) std::memcpy(body, sent, 4 * n);
    body += 4 * n;
    at = sparse_seal(at, region.size, kSparseSum | (dense ? kSparseDense : 0) | static_cast<std::uint32_t>(n), body);
    entries += n;
    first = last;
    return 0;
  });
  return at - wire;
}

}  // namespace gq
