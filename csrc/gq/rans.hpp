// rANS (Duda 2013): the codes that occur share 4096 slots as they are frequent, and a code takes log2(4096 / slots)
// bits, fractions included.
//
// 32 states take turns, code i belongs to state i % 32. A state x is at least 2^16; before it would reach 2^32 its low
// 16 bits are written. Encoding begins with the last code and all states 2^16, so that a decoder that reads forwards
// ends with these. Stream: frequencies of all 2^bits codes plus one by Elias' code, to a whole byte; the 32 states
// (uint32); the words of 16 bits in the order in which the decoder needs them.
#pragma once
#include "gq/bitstream.hpp"
#include "gq/coded_wire.hpp"
#include "gq/elias.hpp"
#include "gq/rans_vectors.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr int kSlotBits = 12;
constexpr std::uint32_t kSlots = 1u << kSlotBits;
constexpr std::size_t kStates = 32;

// Slots of each code, at least one if it occurs and less than all; they are kSlots together.
static inline void share_slots(const std::uint32_t* count, std::size_t n, std::uint32_t* slots) {
  std::uint32_t sum = 0;
  for (int c = 0; c < 256; ++c) {
    slots[c] = static_cast<std::uint32_t>((std::uint64_t(count[c]) * kSlots + n / 2) / n);
    if (count[c] && slots[c] == 0) slots[c] = 1;
    sum += slots[c];
  }
  const auto largest = [&] {
    int found = 0;
    for (int c = 1; c < 256; ++c)
      if (slots[c] > slots[found]) found = c;
    return found;
  };
  while (sum != kSlots) {  // rounding; each iteration removes at least an eighth of the excess
    const int c = largest();
    const std::uint32_t over = sum > kSlots ? sum - kSlots : 0, half = slots[c] / 2;
    const std::uint32_t less = over < half ? over : half;
    slots[c] = over ? slots[c] - less : slots[c] + (kSlots - sum);
    sum = over ? sum - less : kSlots;
  }
  const int c = largest();
  if (slots[c] == kSlots) slots[c]--, slots[c ^ 1]++;
}

static inline void first_slots(const std::uint32_t* slots, std::uint32_t* first) {
  std::uint32_t sum = 0;
  for (int c = 0; c < 256; ++c) {
    first[c] = sum;
    sum += slots[c];
  }
}

static inline std::uint32_t pushed(std::uint32_t state, std::uint32_t slots, std::uint32_t first) {
  const auto whole = static_cast<std::uint32_t>(double(state) / double(slots));  // exact: 53 bits are enough
  return (whole << kSlotBits) + (state - whole * slots) + first;
}

// Encodes the codes of one turn, the words before `end`; returns where they begin.
static inline std::uint8_t* push_turn(const std::uint32_t* slots, const std::uint32_t* first, const std::uint8_t* code,
                                      std::size_t n, std::uint32_t* state, std::uint8_t* end) {
  for (std::size_t i = n; i-- > 0;) {
    const std::uint32_t width = slots[code[i]];
    if (state[i] >> (32 - kSlotBits) >= width) {
      end -= sizeof(std::uint16_t);
      store(end, static_cast<std::uint16_t>(state[i]));
      state[i] >>= 16;
    }
    state[i] = pushed(state[i], width, first[code[i]]);
  }
  return end;
}

#if GQ_LEVEL >= 1

// What a vector of states must know of each code: its slots and the first of them, 12 bits each, and 2^32 over its
// slots, rounded down. If kFew, codes are below 16: AVX-512 finds them in registers, not in memory.
template <bool kFew>
struct SlotTable {
  const std::uint32_t *packed, *inverse;

#if GQ_LEVEL == 2
  Register few_packed, few_inverse;
  SlotTable(const std::uint32_t* packed, const std::uint32_t* inverse)
      : packed(packed), inverse(inverse), few_packed(load<Register>(packed)), few_inverse(load<Register>(inverse)) {}
#else
  SlotTable(const std::uint32_t* packed, const std::uint32_t* inverse) : packed(packed), inverse(inverse) {}
#endif

  GQ_INLINE void find(Register code, Register& found_packed, Register& found_inverse) const {
#if GQ_LEVEL == 2
    if (kFew) {
      found_packed = _mm512_permutexvar_epi32(code, few_packed);
      found_inverse = _mm512_permutexvar_epi32(code, few_inverse);
      return;
    }
#endif
    found_packed = gather(packed, code);
    found_inverse = gather(inverse, code);
  }
};

// As push_turn does, for kWidth codes.
template <bool kFew>
static inline std::uint8_t* push_vector(const SlotTable<kFew>& table, const std::uint8_t* code, Register& state,
                                        std::uint8_t* end) {
  Register packed, inverse;
  table.find((Register)load_bytes(code), packed, inverse);
  const Ints width = (Ints)packed >> kSlotBits, first = (Ints)packed & (kSlots - 1);
  const Ints full = (Ints)shift_right(state, 32 - kSlotBits) >= width;
  end = put_words(state, full, end);
  state = (Register)(full ? (Ints)shift_right(state, 16) : (Ints)state);
  Ints whole = (Ints)multiply_high(state, inverse);  // or one less than it should be
  Ints rest = (Ints)state - multiply((Register)whole, (Register)width);
  const Ints more = rest >= width;  // -1 where it is so
  whole -= more;
  rest -= more & width;
  state = (Register)((whole << kSlotBits) + rest + first);
  return end;
}

constexpr std::size_t kVectors = kStates / kWidth;

template <bool kFew>
static inline std::uint8_t* push_vectors(const SlotTable<kFew>& table, const std::uint8_t* code, std::size_t n,
                                         std::uint32_t* state, std::uint8_t* end) {
  Register held[kVectors];
  for (std::size_t k = 0; k < kVectors; ++k) held[k] = load<Register>(state + k * kWidth);
  for (; n > 0; n -= kStates)
    for (std::size_t k = kVectors; k-- > 0;) end = push_vector(table, code + n - kStates + k * kWidth, held[k], end);
  for (std::size_t k = 0; k < kVectors; ++k) store(state + k * kWidth, held[k]);
  return end;
}

#endif

// Words of the codes before `end`; returns where they begin. In front of them 16 bytes may be overwritten.
static inline std::uint8_t* push_all(const std::uint32_t* slots, const std::uint32_t* first, [[maybe_unused]] int bits,
                                     const std::uint8_t* code, std::size_t n, std::uint32_t* state, std::uint8_t* end) {
  const std::size_t whole = n / kStates * kStates;
  end = push_turn(slots, first, code + whole, n - whole, state, end);
#if GQ_LEVEL >= 1
  std::uint32_t packed[256], inverse[256];
  for (int c = 0; c < 256; ++c) {
    packed[c] = slots[c] << kSlotBits | first[c] % kSlots;
    inverse[c] = slots[c] > 1 ? static_cast<std::uint32_t>((std::uint64_t(1) << 32) / slots[c]) : 0xffffffff;
  }
  if (bits <= 4) return push_vectors(SlotTable<true>(packed, inverse), code, whole, state, end);
  return push_vectors(SlotTable<false>(packed, inverse), code, whole, state, end);
#else
  for (std::size_t i = whole; i > 0; i -= kStates)
    end = push_turn(slots, first, code + i - kStates, kStates, state, end);
  return end;
#endif
}

// The end of the stream, which has room behind it for 2 n bytes and more.
static inline std::uint8_t* rans_encode(const std::uint32_t* count, int bits, const std::uint8_t* code, std::size_t n,
                                        std::uint8_t* out, std::uint8_t* room_end) {
  std::uint32_t slots[256], first[256], state[kStates];
  share_slots(count, n, slots);
  first_slots(slots, first);
  BitWriter writer(out);
  for (int c = 0; c < 1 << bits; ++c) {
    put_elias(writer, slots[c] + 1);
    writer.flush();
  }
  out = writer.finish();
  for (std::uint32_t& each : state) each = kLowestState;
  const std::uint8_t* const words = push_all(slots, first, bits, code, n, state, room_end);
  std::memcpy(out, state, sizeof state);
  out += sizeof state;
  std::memmove(out, words, static_cast<std::size_t>(room_end - words));
  return out + (room_end - words);
}

// Of each slot: its code in the high byte, then the code's slots, then the number of the slot among these.
constexpr int kWidthShift = 12, kCodeShift = 24;

// 32 codes, or n of them; at most 2 * n bytes of words are read from `in`, which is returned behind them.
static inline const std::uint8_t* pop_turn(const std::uint32_t* slot, std::uint32_t* state, const std::uint8_t* in,
                                           std::uint8_t* code, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t entry = slot[state[i] % kSlots];
    code[i] = static_cast<std::uint8_t>(entry >> kCodeShift);
    state[i] = (entry >> kWidthShift) % kSlots * (state[i] / kSlots) + entry % kSlots;
    if (state[i] < kLowestState) {
      state[i] = state[i] << 16 | load<std::uint16_t>(in);
      in += sizeof(std::uint16_t);
    }
  }
  return in;
}

#if GQ_LEVEL >= 1

// A vector of states gives its codes and takes words.
static inline Ints pop_vector(const std::uint32_t* slot, Register& state, const std::uint8_t*& in) {
  const Ints entry = (Ints)gather(slot, (Register)((Ints)state & (kSlots - 1)));
  const Ints width = entry >> kWidthShift & (kSlots - 1);
  const Ints popped = multiply((Register)width, shift_right(state, kSlotBits));
  state = refilled((Register)(popped + (entry & (kSlots - 1))), in);
  return (Ints)shift_right((Register)entry, kCodeShift);
}

// Codes of whole turns, as long as words for one turn are left before `end`; returns how many.
static inline std::size_t pop_turns(const std::uint32_t* slot, std::uint32_t* state, const std::uint8_t*& in,
                                    const std::uint8_t* end, std::uint8_t* code, std::size_t n) {
  Register held[kVectors];
  std::size_t i = 0;
  for (std::size_t k = 0; k < kVectors; ++k) held[k] = load<Register>(state + k * kWidth);
  for (; i + kStates <= n && in <= end; i += kStates) {
    Ints found[kVectors];
    for (std::size_t k = 0; k < kVectors; ++k) found[k] = pop_vector(slot, held[k], in);
    for (std::size_t k = 0; k < kVectors; ++k)
#if GQ_LEVEL == 2
      _mm_storeu_si128((__m128i*)(code + i + k * kWidth), _mm512_cvtepi32_epi8((Register)found[k]));
#else
      _mm_storel_epi64((__m128i*)(code + i + k * kWidth),
                       _mm256_castsi256_si128((Register)narrow_to_bytes(found[k], found[k], found[k], found[k])));
#endif
  }
  for (std::size_t k = 0; k < kVectors; ++k) store(state + k * kWidth, held[k]);
  return i;
}

#endif

// Reads the frequencies; false if they are none.
static inline bool take_slots(BitReader& reader, int bits, std::uint32_t* slot) {
  std::uint32_t next = 0;
  for (int c = 0; c < 1 << bits; ++c) {
    reader.refill();
    const std::uint32_t number = take_elias(reader);
    if (number == 0 || number > kSlots || next + (number - 1) > kSlots) return false;
    const std::uint32_t width = number - 1;
    for (std::uint32_t k = 0; k < width; ++k)
      slot[next + k] = std::uint32_t(c) << kCodeShift | width << kWidthShift | k;
    next += width;
  }
  return next == kSlots && !reader.past_end();
}

// False for a malformed message. kCoderSlack bytes behind it are read.
static inline bool rans_decode(int bits, const std::uint8_t* in, std::size_t nbytes, std::uint8_t* code,
                               std::size_t n) {
  std::uint32_t slot[kSlots], state[kStates];
  BitReader reader(in, nbytes);
  if (!take_slots(reader, bits, slot)) return false;
  const std::uint8_t* const end = in + nbytes;
  in += reader.bytes_read();
  if (std::size_t(end - in) < sizeof state) return false;
  std::memcpy(state, in, sizeof state);
  in += sizeof state;
  for (const std::uint32_t each : state)
    if (each < kLowestState) return false;
  std::size_t i = 0;
#if GQ_LEVEL >= 1
  i = pop_turns(slot, state, in, end, code, n);
#endif
  for (std::size_t part; i < n && in <= end; i += part) {
    part = n - i < kStates ? n - i : kStates;
    in = pop_turn(slot, state, in, code + i, part);
  }
  for (const std::uint32_t each : state)
    if (each != kLowestState) return false;
  return in == end && i == n;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
