// Exact selection of the k largest magnitudes without sorting.
//
// |v| is compared as the integer of its bits without the sign. A pass over the vector collects the few values above a
// floor that was guessed low enough; all that follows works on these survivors. Where nothing is known, a histogram of
// the upper bits gives the floor.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/formed.hpp"
#include "gq/ranking.hpp"
#include "gq/sink.hpp"
#include "gq/vectors.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// Room that `find` may use beyond the indices it reports.
constexpr std::size_t kFindSlack = 16;

// Writes the places i with |v[i]| >= floor to `found`, ascending, each plus `first`; returns how many.
static inline std::size_t find(const float* v, std::size_t n, std::uint32_t floor_bits, std::uint32_t first,
                               std::uint32_t* found) {
  std::size_t count = 0, i = 0;
#if GQ_LEVEL == 2
  const __m512i floor = _mm512_set1_epi32(static_cast<int>(floor_bits)), no_sign = _mm512_set1_epi32(kMagnitude);
  __m512i place = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)),
                                   _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  for (; i + 16 <= n; i += 16) {
    const __m512i bits = _mm512_and_si512(_mm512_loadu_si512(v + i), no_sign);
    const __mmask16 large = _mm512_cmpge_epu32_mask(bits, floor);
    // Compressed in a register: compressing to memory is slow on some CPUs.
    _mm512_storeu_si512(found + count, _mm512_maskz_compress_epi32(large, place));
    count += static_cast<std::size_t>(_mm_popcnt_u32(large));
    place = _mm512_add_epi32(place, _mm512_set1_epi32(16));
  }
#elif GQ_LEVEL == 1
  const __m256i below = _mm256_set1_epi32(static_cast<int>(floor_bits - 1)), no_sign = _mm256_set1_epi32(kMagnitude);
  const auto large_of_eight = [&](std::size_t begin) {
    const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + begin));
    const __m256i large = _mm256_cmpgt_epi32(_mm256_and_si256(value, no_sign), below);
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(large)));
  };
  for (; i + 32 <= n; i += 32) {
    unsigned mask = 0;
    for (std::size_t q = 0; q < 4; ++q) mask |= large_of_eight(i + 8 * q) << 8 * q;
    const unsigned survivors = static_cast<unsigned>(_mm_popcnt_u32(mask));
    std::uint32_t* next = found + count;
    const auto put = [&] {
      *next++ = first + static_cast<std::uint32_t>(i) + _tzcnt_u32(mask);
      mask = _blsr_u32(mask);
    };
    put(), put(), put();  // there are rarely more: without a branch for each
    while (mask) put();
    count += survivors;
  }
  for (; i + 8 <= n; i += 8) {
    for (unsigned mask = large_of_eight(i); mask; mask = _blsr_u32(mask))
      found[count++] = first + static_cast<std::uint32_t>(i) + _tzcnt_u32(mask);
  }
#endif
  for (; i < n; ++i) {
    found[count] = first + static_cast<std::uint32_t>(i);
    count += magnitude(v[i]) >= floor_bits;
  }
  return count;
}

// A pass over memory works block by block. A block is a quarter of a page: with longer ones the CPU's prefetcher has
// stopped by the time the next is read (measured: half as fast).
constexpr std::size_t kSelectBlock = 256;

#if GQ_LEVEL >= 1

// As formed, with v in `spare` and also in r, which begins at a cache line. Its lines are streamed one by one between
// the loads: loads and stores in longer turns wait for each other.
static inline const float* formed_streaming(const float* x, const float* e, float* r, float* spare, std::size_t n) {
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Floats v = e ? load<Floats>(x + i) + load<Floats>(e + i) : load<Floats>(x + i);
    store(spare + i, v);
    stream(r + i, v);
  }
  for (; i < n; ++i) spare[i] = r[i] = e ? x[i] + e[i] : x[i];
  return spare;
}

#else

static inline const float* formed_streaming(const float* x, const float* e, float* r, float* spare, std::size_t n) {
  return formed(x, e, r, spare, n);
}

#endif

// Forms v and appends (first + i, v[i]) for every |v[i]| >= floor_bits >= 1, as long as there is room; returns how many
// there are.
static std::size_t collect(const float* x, const float* e, float* r, std::size_t n, std::uint32_t floor_bits,
                           std::uint32_t first, std::uint32_t* index, float* value, std::size_t capacity,
                           bool streaming) {
  alignas(64) float spare[kSelectBlock];
  std::uint32_t found[kSelectBlock + kFindSlack];
  std::size_t total = 0;
  streaming = streaming && r && can_stream(r);
  std::size_t block = streaming ? floats_to_next_line(r) : 0;  // the first one ends where a line of r begins
  if (block == 0) block = kSelectBlock;
  for (std::size_t begin = 0; begin < n; begin += block, block = kSelectBlock) {
    const std::size_t count = n - begin < block ? n - begin : block;
    const float* const e_here = e ? e + begin : nullptr;
    const float* v = streaming && block == kSelectBlock
                         ? formed_streaming(x + begin, e_here, r + begin, spare, count)
                         : formed(x + begin, e_here, r ? r + begin : nullptr, spare, count);
    const std::size_t survivors = find(v, count, floor_bits, 0, found);
    const std::size_t room = total < capacity ? capacity - total : 0, stored = survivors < room ? survivors : room;
    for (std::size_t j = 0; j < stored; ++j) {
      index[total + j] = first + static_cast<std::uint32_t>(begin) + found[j];
      value[total + j] = v[found[j]];
    }
    total += survivors;
  }
  if (streaming) finish_streaming();
  return total;
}

constexpr int kHistogramBits = 12;
constexpr int kHistogramShift = 31 - kHistogramBits;

// Adds to `counts` how many |v[i]| have each value of their 12 upper bits.
static void histogram(const float* x, const float* e, std::size_t n, std::int64_t* counts) {
  constexpr std::size_t kBins = std::size_t(1) << kHistogramBits;
  constexpr std::size_t kCountable = std::size_t(1) << 31;  // by the 32-bit tables
  for (std::size_t start = 0; start < n; start += kCountable) {
    const std::size_t end = n - start < kCountable ? n : start + kCountable;
    // Four tables: equal neighbours do not wait for each other's increment.
    std::uint32_t table[4][kBins] = {};
    for (std::size_t begin = start; begin < end; begin += kSelectBlock) {
      const std::size_t count = end - begin < kSelectBlock ? end - begin : kSelectBlock;
      float spare[kSelectBlock];
      std::uint16_t bin[kSelectBlock];
      const float* v = formed(x + begin, e ? e + begin : nullptr, nullptr, spare, count);
      for (std::size_t i = 0; i < count; ++i) bin[i] = static_cast<std::uint16_t>(magnitude(v[i]) >> kHistogramShift);
      std::size_t i = 0;
      for (; i + 4 <= count; i += 4)
        for (std::size_t j = 0; j < 4; ++j) ++table[j][bin[i + j]];
      for (; i < count; ++i) ++table[0][bin[i]];
    }
    for (std::size_t j = 0; j < kBins; ++j)
      counts[j] += std::int64_t(table[0][j]) + table[1][j] + table[2][j] + table[3][j];
  }
}

// The key of the k-th largest among those of `side` (k >= 1) and how many are strictly above; 0 if there are fewer.
// Three histograms, of 12, 12 and 7 bits; each only of the values that agree with the digits found so far.
static std::uint32_t kth(const float* value, std::size_t n, std::size_t k, int sign, std::size_t* above) {
  const Side side = side_of(sign);
  std::uint32_t prefix = 0;
  *above = 0;
  constexpr int kShifts[] = {19, 7, 0};
  for (const int shift : kShifts) {
    const int width = shift == 0 ? 7 : 12;
    std::uint32_t table[1 << 12] = {};
    for (std::size_t i = 0; i < n; ++i) {
      const std::int32_t key = key_of(value[i], side);
      const std::uint32_t digits = static_cast<std::uint32_t>(key) >> shift;
      table[digits & ((1u << width) - 1)] += (key > 0) & (digits >> width == prefix);
    }
    std::uint32_t digit = 1u << width;
    while (digit > 0 && *above + table[digit - 1] < k) *above += table[--digit];
    if (digit == 0) return 0;
    prefix = prefix << width | (digit - 1);
  }
  return prefix;
}

// Keeps, in place and in order, the entries above their sign's threshold, and those equal to it while there are ties
// to give away: ties[0] to positive values, ties[1] to negative ones; ties[0] to all if `joint`.
static std::size_t keep(std::uint32_t* index, float* value, std::size_t n, std::uint32_t positive_bits,
                        std::uint32_t negative_bits, std::int64_t* ties, bool joint) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const bool negative = bits_of(value[i]) >> 31;
    const std::uint32_t bits = magnitude(value[i]), threshold = negative ? negative_bits : positive_bits;
    bool stays = bits > threshold;
    if (bits == threshold) {
      std::int64_t& left = ties[negative && !joint];
      stays = left > 0;
      left -= stays;
    }
    index[kept] = index[i];
    value[kept] = value[i];
    kept += stays;
  }
  return kept;
}

static void count_signs(const float* v, std::size_t n, std::size_t* positives, std::size_t* negatives) {
  *positives = *negatives = 0;
  for (std::size_t i = 0; i < n; ++i) {
    *positives += v[i] > 0.0f;
    *negatives += v[i] < 0.0f;
  }
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
