// Codes of b bits, 1 <= b <= 8, as a stream of bits: code i in the bits [i*b, (i+1)*b), lowest bit first in each byte,
// zeros in the bits left over. Eight codes fill b bytes, so parts of 8k codes can be packed one after the other.
#pragma once
#include "gq/standard.hpp"
#include "gq/vectors.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// The low bits of the eight bytes of each 64-bit number next to each other, and zeros above; bits < 8. Not by PEXT and
// PDEP below AVX-512: some CPUs with AVX2 alone (Zen, Zen 2) take hundreds of cycles for these.
template <class Words>
static inline Words joined(Words word, int bits) {
  const std::uint64_t bytes = 0x0001000100010001 * ((1u << bits) - 1), pairs = 0x100000001 * ((1u << 2 * bits) - 1),
                      fours = (1u << 4 * bits) - 1;
  word = (word & bytes) | (word >> (8 - bits) & bytes << bits);
  word = (word & pairs) | (word >> (16 - 2 * bits) & pairs << 2 * bits);
  return (word & fours) | (word >> (32 - 4 * bits) & fours << 4 * bits);
}

// The reverse; what is above the eight codes is noise.
template <class Words>
static inline Words apart(Words word, int bits) {
  const std::uint64_t bytes = 0x0001000100010001 * ((1u << bits) - 1), pairs = 0x100000001 * ((1u << 2 * bits) - 1),
                      fours = (1u << 4 * bits) - 1;
  word = (word & fours) | (word & fours << 4 * bits) << (32 - 4 * bits);
  word = (word & pairs) | (word & pairs << 2 * bits) << (16 - 2 * bits);
  return (word & bytes) | (word & bytes << bits) << (8 - bits);
}

static inline std::uint64_t join_eight(const std::uint8_t* code, std::size_t n, int bits) {
#if GQ_LEVEL == 2
  if (n == 8) return _pext_u64(load<std::uint64_t>(code), 0x0101010101010101 * ((1 << bits) - 1));
#else
  if (n == 8) return joined(load<std::uint64_t>(code), bits);
#endif
  std::uint64_t word = 0;
  for (std::size_t k = 0; k < n; ++k) word |= std::uint64_t(code[k]) << (k * bits);
  return word;
}

static inline void split_eight(std::uint64_t word, std::size_t n, int bits, std::uint8_t* code) {
#if GQ_LEVEL == 2
  if (n == 8) return store(code, std::uint64_t(_pdep_u64(word, 0x0101010101010101 * ((1 << bits) - 1))));
#else
  if (n == 8) return store(code, apart(word, bits));
#endif
  for (std::size_t k = 0; k < n; ++k) code[k] = word >> (k * bits) & ((1 << bits) - 1);
}

static inline void pack_plain(const std::uint8_t* code, std::size_t n, int bits, std::uint8_t* out) {
  for (; packed_size(n, bits) >= 8; n -= 8, code += 8, out += bits) {
    const std::uint64_t word = join_eight(code, 8, bits);
    std::memcpy(out, &word, 8);  // the bytes from `bits` on are written again by what follows
  }
  for (std::size_t part; n > 0; n -= part, code += part, out += bits) {
    part = n < 8 ? n : 8;
    const std::uint64_t word = join_eight(code, part, bits);
    std::memcpy(out, &word, packed_size(part, bits));
  }
}

static inline void unpack_plain(const std::uint8_t* in, std::size_t n, int bits, std::uint8_t* code) {
  std::uint64_t word;
  for (; packed_size(n, bits) >= 8; n -= 8, code += 8, in += bits) {
    std::memcpy(&word, in, 8);
    split_eight(word, 8, bits, code);
  }
  for (std::size_t part; n > 0; n -= part, code += part, in += bits) {
    part = n < 8 ? n : 8;
    word = 0;
    std::memcpy(&word, in, packed_size(part, bits));
    split_eight(word, part, bits, code);
  }
}

#if GQ_LEVEL >= 1

#if GQ_LEVEL == 2

static inline Ints join_pairs(Register code, int weight) {  // pairs of bytes, then pairs of pairs, in one number
  const Register pair = _mm512_maddubs_epi16(code, _mm512_set1_epi16(std::int16_t(weight << 8 | 1)));
  return (Ints)_mm512_madd_epi16(pair, _mm512_set1_epi32((weight * weight) << 16 | 1));
}

// The first n < kGroup codes, and zeros.
static inline Register first_codes(const std::uint8_t* code, std::size_t n) {
  return _mm512_maskz_loadu_epi8(_bzhi_u64(~0ull, static_cast<unsigned>(n)), code);
}

// At most kGroup / 2 bytes.
static inline void put_bytes(const std::uint8_t* from, std::size_t n, std::uint8_t* out) {
  _mm256_mask_storeu_epi8(out, _bzhi_u32(~0u, static_cast<unsigned>(n)), load<__m256i>(from));
}

// Packs kGroup codes into 8 * bits bytes.
static inline void pack_group(Register all, int bits, std::uint8_t* out) {
  if (bits == 1) {
    const std::uint64_t word = _mm512_movepi8_mask(_mm512_slli_epi16(all, 7));
    std::memcpy(out, &word, 8);
  } else if (bits == 2) {
    _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8((Register)join_pairs(all, 4)));
  } else if (bits == 3) {  // 12 bits in each number, 24 in each pair of them
    const Quads four = (Quads)join_pairs(all, 8);
    const Register eight = (Register)(four | four >> 20);
    const Register compact = _mm512_shuffle_epi8(
        eight, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 8, 9, 10, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)));
    const Register order =
        _mm512_zextsi256_si512(_mm256_setr_epi16(0, 1, 2, 8, 9, 10, 16, 17, 18, 24, 25, 26, 0, 0, 0, 0));
    const __m256i whole = _mm512_castsi512_si256(_mm512_permutexvar_epi16(order, compact));
    std::memcpy(out, &whole, 24);
  } else {  // 4
    const Register pair = _mm512_maddubs_epi16(all, _mm512_set1_epi16(0x1001));
    _mm256_storeu_si256((__m256i*)out, _mm512_cvtepi16_epi8(pair));
  }
}

// 16 codes from 2 * bits bytes, bits <= 4, each in the low bits of a lane; the bits above are noise. Reads
// bits + 4 bytes.
static inline Ints expand(const std::uint8_t* in, int bits, Ints begins) {
  const Register low = _mm512_broadcastd_epi32(_mm_loadu_si32(in));
  const Register both = _mm512_mask_broadcastd_epi32(low, 0xff00, _mm_loadu_si32(in + bits));
  return (Ints)_mm512_srlv_epi32(both, (Register)begins);
}

#else

static inline Register join_pairs(Register code, int weight) {
  const Register pair = _mm256_maddubs_epi16(code, _mm256_set1_epi16(std::int16_t(weight << 8 | 1)));
  return _mm256_madd_epi16(pair, _mm256_set1_epi32((weight * weight) << 16 | 1));
}

static inline Register first_codes(const std::uint8_t* code, std::size_t n) {
  std::uint8_t first[kGroup] = {};
  std::memcpy(first, code, n);
  return load<Register>(first);
}

static inline void put_bytes(const std::uint8_t* from, std::size_t n, std::uint8_t* out) { std::memcpy(out, from, n); }

static inline void pack_group(Register all, int bits, std::uint8_t* out) {
  if (bits == 1) {
    const std::uint32_t word = _mm256_movemask_epi8(_mm256_slli_epi16(all, 7));
    std::memcpy(out, &word, 4);
  } else if (bits == 2) {
    const Register four = join_pairs(all, 4);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    _mm_storel_epi64((__m128i*)out, _mm_packus_epi16(words, words));
  } else if (bits == 3) {
    const Quads four = (Quads)join_pairs(all, 8);
    const Quads eight = four | four >> 20;
    for (int k = 0; k < 4; ++k) std::memcpy(out + 3 * k, (const char*)&eight + 8 * k, 3);
  } else {  // 4
    const Register pair = _mm256_maddubs_epi16(all, _mm256_set1_epi16(0x1001));
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(pair), _mm256_extracti128_si256(pair, 1));
    _mm_storeu_si128((__m128i*)out, bytes);
  }
}

// Four times eight codes, bits > 4, while the last eight bytes of these are within n codes.
static inline bool four_words(std::size_t n, int bits) { return bits > 4 && packed_size(n, bits) >= 3u * bits + 8; }

static inline void pack_words(const std::uint8_t* code, int bits, std::uint8_t* out) {
  const Quads words = joined((Quads)load<Register>(code), bits);
  for (int k = 0; k < 4; ++k) std::memcpy(out + k * bits, (const char*)&words + 8 * k, 8);
}

static inline void unpack_words(const std::uint8_t* in, int bits, std::uint8_t* code) {
  Quads words;
  for (int k = 0; k < 4; ++k) std::memcpy((char*)&words + 8 * k, in + k * bits, 8);
  store(code, (Register)apart(words, bits));
}

// 8 codes from `bits` bytes, bits <= 4, each in the low bits of a lane; the bits above are noise. Reads 4 bytes.
static inline Ints expand(const std::uint8_t* in, int, Ints begins) {
  return (Ints)_mm256_srlv_epi32(_mm256_broadcastd_epi32(_mm_loadu_si32(in)), (Register)begins);
}

#endif

constexpr std::size_t kExpandReads = GQ_LEVEL == 2 ? 8 : 4;  // expand reads no more bytes than this

// Where each code begins in what `expand` spreads over its lanes.
static inline Ints code_begins(int bits) {
  Ints begins;
  for (std::size_t lane = 0; lane < kWidth; ++lane) begins[lane] = static_cast<int>(lane % 8) * bits;
  asm("" : "+x"(begins));  // computed here: the compiler would do so for each vector
  return begins;
}

#endif

// n codes below 2^bits.
static inline void pack(const std::uint8_t* code, std::size_t n, int bits, std::uint8_t* out) {
  if (bits == 8) {
    if (n > 0) std::memcpy(out, code, n);
    return;
  }
#if GQ_LEVEL >= 1
  if (bits <= 4)
    for (; n >= kGroup; n -= kGroup, code += kGroup, out += kGroup / 8 * bits)
      pack_group(load<Register>(code), bits, out);
  if (bits <= 4 && n >= kGroup / 4) {
    std::uint8_t packed[kGroup / 2];
    pack_group(first_codes(code, n), bits, packed);
    put_bytes(packed, packed_size(n, bits), out);
    return;
  }
#endif
#if GQ_LEVEL == 1
  for (; four_words(n, bits); n -= kGroup, code += kGroup, out += kGroup / 8 * bits) pack_words(code, bits, out);
#endif
  pack_plain(code, n, bits, out);
}

static inline void unpack(const std::uint8_t* in, std::size_t n, int bits, std::uint8_t* code) {
  if (bits == 8) {
    if (n > 0) std::memcpy(code, in, n);
    return;
  }
#if GQ_LEVEL >= 1
  const std::size_t step = kWidth / 8 * bits;  // bytes that hold kWidth codes
  const std::uint8_t* const end = in + packed_size(n, bits);
  if (bits <= 4) {
    const Ints begins = code_begins(bits);
    for (; n >= kGroup && std::size_t(end - in) >= 3 * step + kExpandReads; n -= kGroup, code += kGroup) {
      Ints part[4];
      for (Ints& codes : part) {
        codes = expand(in, bits, begins) & ((1 << bits) - 1);
        in += step;
      }
      store(code, narrow_to_bytes(part[0], part[1], part[2], part[3]));
    }
  }
#endif
#if GQ_LEVEL == 1
  for (; four_words(n, bits); n -= kGroup, code += kGroup, in += kGroup / 8 * bits) unpack_words(in, bits, code);
#endif
  unpack_plain(in, n, bits, code);
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
