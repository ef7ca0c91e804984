// What rANS does with vectors of states: words out of them and into them, products, look-ups.
#pragma once
#include "gq/standard.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr std::uint32_t kLowestState = 1u << 16;

#if GQ_LEVEL == 2

// Puts the low words of the chosen states before `end`.
static inline std::uint8_t* put_words(Register state, Ints chosen, std::uint8_t* end) {
  const __mmask16 mask = _mm512_movepi32_mask((Register)chosen);
  const int words = __builtin_popcount(mask);
  end -= sizeof(std::uint16_t) * words;
  const __m256i low = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(mask, state));
  _mm256_mask_storeu_epi16(end, static_cast<__mmask16>((1u << words) - 1), low);
  return end;
}

// The high halves of the products.
static inline Register multiply_high(Register a, Register b) {
  const Register even = _mm512_srli_epi64(_mm512_mul_epu32(a, b), 32);
  const Register odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
  return _mm512_mask_blend_epi32(0xAAAA, even, odd);
}
static inline Ints multiply(Register a, Register b) { return (Ints)_mm512_mullo_epi32(a, b); }
static inline Register shift_right(Register a, int by) { return _mm512_srli_epi32(a, by); }
static inline Register gather(const std::uint32_t* table, Register index) {
  return _mm512_i32gather_epi32(index, table, 4);
}

// Shifts the next words into those states that are too low.
static inline Register refilled(Register state, const std::uint8_t*& in) {
  const __mmask16 low = _mm512_cmplt_epu32_mask(state, _mm512_set1_epi32(kLowestState));
  const Register words = (Register)load_words(reinterpret_cast<const std::uint16_t*>(in));
  in += sizeof(std::uint16_t) * __builtin_popcount(low);
  const Register shifted = _mm512_mask_slli_epi32(state, low, state, 16);
  return _mm512_mask_or_epi32(shifted, low, shifted, _mm512_maskz_expand_epi32(low, words));
}

#elif GQ_LEVEL == 1

// Row m: the order in which the words in the mask m move to the end, those before them wherever.
struct Compaction {
  std::uint8_t order[256][16];
};

constexpr Compaction compaction() {
  Compaction made = {};
  for (int mask = 0; mask < 256; ++mask)
    for (int lane = 7, next = 7; lane >= 0; --lane)
      if (mask >> lane & 1) {
        made.order[mask][2 * next] = static_cast<std::uint8_t>(2 * lane);
        made.order[mask][2 * next-- + 1] = static_cast<std::uint8_t>(2 * lane + 1);
      }
  return made;
}

static constexpr Compaction kCompaction = compaction();

static inline std::uint8_t* put_words(Register state, Ints chosen, std::uint8_t* end) {
  const int mask = _mm256_movemask_ps((__m256)chosen);
  const Register low = _mm256_and_si256(state, _mm256_set1_epi32(0xffff));
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  const __m128i order = _mm_loadu_si128((const __m128i*)kCompaction.order[mask]);
  _mm_storeu_si128((__m128i*)(end - 16), _mm_shuffle_epi8(words, order));
  return end - sizeof(std::uint16_t) * __builtin_popcount(mask);
}

static inline Register multiply_high(Register a, Register b) {
  const Register even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
  const Register odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  return _mm256_blend_epi32(even, odd, 0xAA);
}
static inline Ints multiply(Register a, Register b) { return (Ints)_mm256_mullo_epi32(a, b); }
static inline Register shift_right(Register a, int by) { return _mm256_srli_epi32(a, by); }
static inline Register gather(const std::uint32_t* table, Register index) {
  return _mm256_i32gather_epi32((const int*)table, index, 4);
}

// Byte 8 m + k: how many of the lanes below k are in the mask m; 8 for a lane that is not in it.
struct Expansion {
  std::uint8_t order[256][8];
};

constexpr Expansion expansion() {
  Expansion made = {};
  for (int mask = 0; mask < 256; ++mask)
    for (int lane = 0, next = 0; lane < 8; ++lane) made.order[mask][lane] = mask >> lane & 1 ? next++ : 0;
  return made;
}

static constexpr Expansion kExpansion = expansion();

static inline Register refilled(Register state, const std::uint8_t*& in) {
  const Register low = _mm256_cmpeq_epi32(_mm256_srli_epi32(state, 16), _mm256_setzero_si256());
  const int mask = _mm256_movemask_ps((__m256)low);
  const Register words = (Register)load_words(reinterpret_cast<const std::uint16_t*>(in));
  const Register order = (Register)load_bytes(kExpansion.order[mask]);
  in += sizeof(std::uint16_t) * __builtin_popcount(mask);
  const Register shifted = _mm256_or_si256(_mm256_slli_epi32(state, 16), _mm256_permutevar8x32_epi32(words, order));
  return _mm256_blendv_epi8(state, shifted, low);
}

#endif

}  // namespace GQ_NAMESPACE
}  // namespace gq
