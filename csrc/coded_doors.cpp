#include "gq/coded_doors.hpp"

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "gq/buckets.hpp"
#include "gq/coded_wire.hpp"
#include "gq/door.hpp"
#include "gq/grid.hpp"
#include "gq/levels_wire.hpp"

namespace gq {

namespace {

constexpr int kBad = 1;  // a value, a norm or a message

// Some consecutive buckets of a region.
struct Section {
  std::size_t begin, end;  // elements, relative to the region
  Grid grid;
  std::size_t fixed;  // bytes without an entropy code

  std::size_t size() const { return end - begin; }
};

// How a region is cut into sections.
struct Sections {
  const Region& region;
  const Levels& levels;
  std::size_t units, each, count;

  Sections(const Region& region, const Levels& levels) : region(region), levels(levels) {
    units = unit_count(region.grid, region.size);
    const std::size_t most = kSectionCodes / region.grid.run;
    each = most > 1 ? most : 1;
    count = (units + each - 1) / each;
  }

  std::size_t fixed(std::size_t section) const {
    const std::size_t until = section * each;
    return levels_offset(region.grid, region.size, until < units ? until : units, levels);
  }

  Section operator[](std::size_t number) const {
    const std::size_t begin = unit_begin(region.grid, region.size, number * each);
    const std::size_t end = unit_begin(region.grid, region.size, (number + 1) * each);
    const Grid grid = {region.grid.start + begin, region.grid.run, region.grid.parts};
    return {begin, end, grid, fixed(number + 1) - fixed(number)};
  }

  // The most bytes of sections, each with its form, that lie before this one.
  std::size_t bound(std::size_t number) const { return fixed(number) + number; }
  // Bytes in front of the directory, and those up to its end.
  std::size_t key() const { return key_size(levels, region.size); }
  std::size_t head() const { return key() + count * kSizeField; }
  std::size_t most_units() const { return each < units ? each : units; }
  // Of one section.
  std::size_t most_codes() const { return std::min<std::uint64_t>(region.size, region.grid.run * most_units()); }

  // work(first, last) for the sections of each thread.
  template <class Work>
  int on_all(Work work) const {
    if (count == 0) return 0;
    const int many = static_cast<int>(std::min<std::size_t>(threads_for(region.size), count));
    return on_threads(many, [&](int thread) { return work(count * thread / many, count * (thread + 1) / many); });
  }
};

// Memory for one section: as it is without an entropy code, its codes, and its message.
class Room {
 public:
  explicit Room(const Sections& sections) {
    const std::size_t codes = sections.most_codes(), scales = kNormBytes * sections.most_units();
    const std::size_t fixed = scales + sections.most_units() + codes, coded = 1 + scales + coder_room(codes);
    memory_.reset(new (std::nothrow) std::uint8_t[fixed + codes + coded]);
    this->fixed = memory_.get();
    code = this->fixed + fixed;
    message = code + codes;
  }

  explicit operator bool() const { return memory_ != nullptr; }

  std::uint8_t *fixed, *code, *message;

 private:
  std::unique_ptr<std::uint8_t[]> memory_;
};

// For each bucket: visit(its scale and codes without an entropy code, its height).
template <class Bytes, class Visit>
void by_buckets(const Section& section, const Levels& levels, Bytes* fixed, Visit visit) {
  for (Units unit(section.grid, section.size()); unit.inside(); unit.advance()) {
    visit(fixed, unit.begin, unit.height());
    fixed += scale_size(levels) + packed_size(unit.height(), levels.bits);
  }
}

// Makes room.message of room.fixed; returns its bytes.
std::size_t shortened(const Entropy& entropy, const Levels& levels, const Section& section, const Room& room) {
  const std::size_t scale = scale_size(levels);
  std::uint8_t* scales = room.message + 1;
  by_buckets(section, levels, room.fixed, [&](const std::uint8_t* bucket, std::size_t begin, std::size_t height) {
    std::memcpy(scales, bucket, scale);
    scales += scale;
    kernels().unpack(bucket + scale, height, levels.bits, room.code + begin);
  });
  const auto before = static_cast<std::size_t>(scales - room.message - 1);
  const std::size_t nbytes = kernels().coded_encode(entropy, room.code, section.size(), before, room.message);
  if (nbytes <= section.fixed) return nbytes;
  *room.message = kAsWithout;
  std::memcpy(room.message + 1, room.fixed, section.fixed);
  return 1 + section.fixed;
}

// Fills in room.fixed from the section's message, which is not of the form kAsWithout; false if that is malformed.
bool lengthened(const Entropy& entropy, const Levels& levels, const Section& section, const std::uint8_t* in,
                std::size_t nbytes, const Room& room) {
  const std::size_t scale = scale_size(levels), scales = scale * unit_count(section.grid, section.size());
  if (nbytes < 1 + scales || nbytes > section.fixed) return false;
  const std::size_t codes = nbytes - 1 - scales;
  std::memcpy(room.message, in + 1 + scales, codes);
  std::memset(room.message + codes, 0, kCoderSlack);  // coders may read it
  if (!kernels().coded_decode(entropy, *in, room.message, codes, room.code, section.size())) return false;
  const std::uint8_t* from = in + 1;
  by_buckets(section, levels, room.fixed, [&](std::uint8_t* bucket, std::size_t begin, std::size_t height) {
    std::memcpy(bucket, from, scale);
    from += scale;
    kernels().pack(room.code + begin, height, levels.bits, bucket + scale);
  });
  return true;
}

// Closes the gaps between the sections, whose sizes are in the directory; returns the bytes of the region's message.
std::size_t closed(const Sections& sections, std::uint8_t* wire) {
  std::uint8_t* const first = wire + sections.head();
  std::size_t end = 0;
  for (std::size_t number = 0; number < sections.count; ++number) {
    const std::size_t size = load<std::uint32_t>(wire + sections.key() + number * kSizeField);
    std::memmove(first + end, first + sections.bound(number), size);
    end += size;
  }
  return sections.head() + end;
}

// The arrays of an encoding of one region.
struct Encoding {
  const float *x, *e;
  float* r;
  std::uint8_t* wire;
};

int encode(const Encoding& to, const Entropy& entropy, const Sections& sections, bool l2, const Stream& stream) {
  const Region& region = sections.region;
  const std::uint64_t key = put_key(sections.levels, region.size, stream, to.wire);
  return sections.on_all([&](std::size_t first, std::size_t last) {
    const Room room(sections);
    const Buckets buckets(sections.levels, key, region.grid, region.size);
    if (!room || !buckets) return kOutOfMemory;
    for (std::size_t number = first; number < last; ++number) {
      const Section section = sections[number];
      if (buckets.encode(to.x + section.begin, shifted(to.e, section.begin), shifted(to.r, section.begin), room.fixed,
                         section.size(), l2, section.grid, stream))
        return kBad;
      const std::size_t nbytes = shortened(entropy, sections.levels, section, room);
      std::memcpy(to.wire + sections.head() + sections.bound(number), room.message, nbytes);
      store(to.wire + sections.key() + number * kSizeField, static_cast<std::uint32_t>(nbytes));
    }
    return 0;
  });
}

// Where the sections with numbers `first` to `last` less one end, counted from the first one; more than `most` if that
// is too far.
std::size_t end_of(const std::uint8_t* sizes, std::size_t first, std::size_t last, std::size_t most) {
  std::size_t end = 0;
  for (std::size_t number = first; number < last && end <= most; ++number)
    end += load<std::uint32_t>(sizes + number * kSizeField);
  return end;
}

int decode_section(const std::uint8_t* in, std::size_t nbytes, float* y, const Entropy& entropy, const Levels& levels,
                   const Section& section, const Buckets& buckets, const Room& room, float scale, bool add) {
  if (nbytes == 0) return kBad;
  const bool as_fixed = *in == kAsWithout;
  if (as_fixed && nbytes != 1 + section.fixed) return kBad;
  if (!as_fixed && !lengthened(entropy, levels, section, in, nbytes, room)) return kBad;
  return buckets.decode(as_fixed ? in + 1 : room.fixed, section.fixed, y + section.begin, section.size(), section.grid,
                        scale, add);
}

// The bytes of the region's message, or kMalformed or kNoMemory.
std::int64_t decode(const std::uint8_t* wire, std::size_t nbytes, float* y, const Entropy& entropy,
                    const Sections& sections, float scale, bool add) {
  if (nbytes < sections.head()) return kMalformed;
  const std::size_t room_for_sections = nbytes - sections.head();
  const std::size_t end = end_of(wire + sections.key(), 0, sections.count, room_for_sections);
  if (end > room_for_sections) return kMalformed;
  const std::uint64_t key = sections.key() ? load<std::uint64_t>(wire) : 0;
  const int bad = sections.on_all([&](std::size_t first, std::size_t last) {
    const Room room(sections);
    const Buckets buckets(sections.levels, key, sections.region.grid, sections.region.size);
    if (!room || !buckets) return kOutOfMemory;
    const std::uint8_t* at = wire + sections.head() + end_of(wire + sections.key(), 0, first, end);
    for (std::size_t number = first; number < last; ++number) {
      const std::size_t size = load<std::uint32_t>(wire + sections.key() + number * kSizeField);
      if (const int found =
              decode_section(at, size, y, entropy, sections.levels, sections[number], buckets, room, scale, add))
        return found;
      at += size;
    }
    return 0;
  });
  if (bad) return bad & kOutOfMemory ? kNoMemory : kMalformed;
  return static_cast<std::int64_t>(sections.head() + end);
}

// Codes that encoders write, and where their levels lie: `visit(code, place, negative)`, place 0 for a single zero.
template <class Visit>
void by_places(const Levels& levels, Visit visit) {
  if (!levels.floating || levels.floats.positive > 0 || !levels.floats.zero) {
    const int middle = levels.count / 2, zero = levels.count % 2;
    for (int code = 0; code < middle; ++code) visit(code, middle - code, true);
    for (int code = middle; code < levels.count; ++code) visit(code, code - middle + 1 - zero, false);
    return;
  }
  const bool two_zeros = levels.floats.flip == 0;
  for (int number = 0; number <= levels.floats.last; ++number)
    for (const bool negative : {false, true})
      if (number > 0 || two_zeros || !negative)
        visit(code_of_number(levels.floats, number, negative), number + two_zeros, negative);
}

// An Elias code with the table that decoders read.
struct Elias {
  EliasCode code;
  std::vector<std::uint16_t> table;
};

// Made once for all levels whose codes mean the same places from zero, and kept: to build the largest table takes
// longer than to decode a small message.
const Elias& elias_for(const Levels& levels) {
  static std::mutex making;
  static std::map<std::array<int, 7>, Elias> made;
  const SmallFloats& floats = levels.floats;
  std::array<int, 7> places = {levels.count};
  if (levels.floating) places = {levels.count, 1, floats.positive, floats.zero, floats.flip, floats.last, floats.mask};
  const std::lock_guard<std::mutex> lock(making);
  const auto known = made.find(places);
  if (known != made.end()) return known->second;
  Elias elias = {elias_code(levels), {}};
  elias.table.resize(std::size_t(1) << elias.code.dense.longest);
  kernels().prefix_table(elias.code.dense, elias.table.data());
  return made.emplace(places, std::move(elias)).first->second;
}

// What the coders need; false if there is no memory.
bool prepare(const Levels& levels, Coding coding, Entropy& entropy) {
  entropy = {coding, levels.bits, nullptr, nullptr};
  if (coding != Coding::kElias) return true;
  try {
    const Elias& elias = elias_for(levels);
    entropy.elias = &elias.code;
    entropy.table = elias.table.data();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

EliasCode elias_code(const Levels& levels) {
  EliasCode elias = {};
  elias.zero = -1;
  by_places(levels, [&](int code, int place, bool) { elias.zero = place == 0 ? code : elias.zero; });
  by_places(levels, [&](int code, int place, bool negative) {
    Pattern pattern = elias_of(static_cast<std::uint32_t>(place + (elias.zero >= 0)));
    if (place > 0) pattern = {pattern.bits << 1 | std::uint64_t(negative), pattern.length + 1};
    elias.dense.pattern[code] = static_cast<std::uint16_t>(pattern.bits);
    elias.dense.length[code] = static_cast<std::uint8_t>(pattern.length);
    elias.dense.longest = std::max(elias.dense.longest, pattern.length);
    elias.place[code] = static_cast<std::uint8_t>(place);
    elias.negative[code] = negative;
    elias.code_at[negative][place] = static_cast<std::uint8_t>(code);
    elias.places[negative] = std::max(elias.places[negative], static_cast<std::uint32_t>(place));
  });
  return elias;
}

std::size_t coded_bound(const Regions& regions, const Levels& levels) {
  return sum_over(regions, [&](const Region& region) {
    const Sections sections(region, levels);
    return sections.head() + sections.bound(sections.count);
  });
}

std::int64_t coded_encode(const float* x, const float* e, float* r, std::uint8_t* wire, const Levels& levels,
                          Coding coding, bool l2, const Regions& regions, const Stream* streams) {
  Entropy entropy;
  if (!prepare(levels, coding, entropy)) return kNoMemory;
  const std::uint8_t* const begin = wire;
  const int bad = by_regions(regions, [&](const Region& region, std::size_t place) {
    const Sections sections(region, levels);
    const Encoding to = {x + place, shifted(e, place), shifted(r, place), wire};
    const int found = encode(to, entropy, sections, l2, streams[region.segment]);
    if (!found) wire += closed(sections, wire);
    return found;
  });
  if (bad) return bad & kOutOfMemory ? kNoMemory : kNotFinite;
  return wire - begin;
}

std::int64_t coded_decode(const std::uint8_t* wire, std::size_t nbytes, float* y, const Levels& levels, Coding coding,
                          const Regions& regions, float scale, bool add) {
  Entropy entropy;
  if (!prepare(levels, coding, entropy)) return kNoMemory;
  std::size_t at = 0;
  for (const Region& region : regions) {
    const std::int64_t used = decode(wire + at, nbytes - at, y, entropy, Sections(region, levels), scale, add);
    if (used < 0) return used;
    at += static_cast<std::size_t>(used);
    y += region.size;
  }
  return static_cast<std::int64_t>(at);
}

}  // namespace gq
