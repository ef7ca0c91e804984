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
  const std::uint8_t *at = wire, *const end = wire + nbytes;
  std::uint32_t *out = index, *const last = index + count;
  for (std::size_t first = 0; first < elements; first += kBlock) {
    const std::size_t size = std::min(kBlock, elements - first);
    if (end - at < 2) return kPlacesEndEarly;
    const auto header = load<std::uint16_t>(at);
    at += 2;
    const std::size_t body = header == kBits ? (size + 7) / 8 : 2 * std::size_t(header);
    if (static_cast<std::size_t>(end - at) < body) return kPlacesEndEarly;
    if (header != kBits) {
      if (static_cast<std::size_t>(last - out) < header) return kPlacesAreMore;
      std::int64_t before = -1;
      bool ascending = true;
      for (std::size_t i = 0; i < header; ++i) {
        const std::int64_t offset = load<std::uint16_t>(at + 2 * i);
        ascending &= offset > before;
        before = offset;
        *out++ = static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(offset);
      }
      if (!ascending || before >= static_cast<std::int64_t>(size)) return kPlacesDoNotAscend;
    } else {
      for (std::size_t byte = 0; byte < body; ++byte) {
        for (unsigned bits = at[byte]; bits; bits &= bits - 1) {
          const std::size_t offset = 8 * byte + static_cast<std::size_t>(__builtin_ctz(bits));
          if (offset >= size) return kPlacesDoNotAscend;
          if (out == last) return kPlacesAreMore;
          *out++ = static_cast<std::uint32_t>(first + offset);
        }
      }
    }
    at += body;
  }
  return out == last ? at - wire : std::int64_t{kPlacesAreFewer};
}

bool add_at(float* y, std::size_t n, const std::uint32_t* index, const std::uint8_t* values, std::size_t count) {
  const FloatGuard guard;
  return at_places(y, n, index, count, [&](float& at, std::size_t i) { at += load<float>(values + 4 * i); });
}

bool put_at(float* y, std::size_t n, const std::uint32_t* index, const std::uint8_t* values, std::size_t count) {
  return at_places(y, n, index, count, [&](float& at, std::size_t i) { at = load<float>(values + 4 * i); });
}

}  // namespace gq
