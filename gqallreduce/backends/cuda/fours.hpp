// Numbers from and to memory four at a time, in one access where the address allows.
#pragma once
#include "block.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace device {

template <class Number>
struct alignas(4 * sizeof(Number) < 16 ? 4 * sizeof(Number) : 16) Four {
  Number number[4];
};

template <class Number>
static inline bool fits_four(const void* address) {
  return reinterpret_cast<std::size_t>(address) % alignof(Four<Number>) == 0;
}

// The first `count` of four numbers; the others are zero.
template <class Number>
static inline Four<Number> load_four(const Number* source, std::size_t count) {
  if (count >= 4 && fits_four<Number>(source)) return *reinterpret_cast<const Four<Number>*>(source);
  Four<Number> four = {};
  for (unsigned k = 0; k < 4; ++k)
    if (k < count) four.number[k] = source[k];
  return four;
}

template <class Number>
static inline void store_four(Number* target, const Four<Number>& four, std::size_t count) {
  if (count >= 4 && fits_four<Number>(target)) {
    *reinterpret_cast<Four<Number>*>(target) = four;
    return;
  }
  for (unsigned k = 0; k < 4; ++k)
    if (k < count) target[k] = four.number[k];
}

// Numbers i ... i + 3 of n; those from n on are zeros.
template <class Number>
static inline Four<Number> four_of(const Number* source, std::size_t i, std::size_t n) {
  return i < n ? load_four<Number>(source + i, n - i) : Four<Number>{};
}

// The same of bytes on the wire, at any address; byte by byte they cost several times as much.
template <class Number>
static inline bool fits_one(const void* address) {
  return reinterpret_cast<std::size_t>(address) % sizeof(Number) == 0;
}

template <class Number>
static inline Four<Number> load_four(const void* source, std::size_t count) {
  if (fits_one<Number>(source)) return load_four(static_cast<const Number*>(source), count);
  Four<Number> four = {};
  const std::uint8_t* const bytes = static_cast<const std::uint8_t*>(source);
  for (unsigned k = 0; k < 4; ++k)
    if (k < count) four.number[k] = load<Number>(bytes + k * sizeof(Number));
  return four;
}

template <class Number>
static inline void store_four(void* target, const Four<Number>& four, std::size_t count) {
  if (fits_one<Number>(target)) return store_four(static_cast<Number*>(target), four, count);
  std::uint8_t* const bytes = static_cast<std::uint8_t*>(target);
  for (unsigned k = 0; k < 4; ++k)
    if (k < count) store(bytes + k * sizeof(Number), four.number[k]);
}

// v = x + e, or x where e is null.
static inline Four<float> load_sum(const float* x, const float* e, std::size_t count) {
  Four<float> v = load_four<float>(x, count);
  if (!e) return v;
  const Four<float> residual = load_four<float>(e, count);
  for (unsigned k = 0; k < 4; ++k) v.number[k] += residual.number[k];
  return v;
}

// y = v or y += v
static inline void put_four(float* y, Four<float> v, std::size_t count, bool add) {
  if (add) {
    const Four<float> before = load_four<float>(y, count);
    for (unsigned k = 0; k < 4; ++k) v.number[k] = before.number[k] + v.number[k];
  }
  store_four(y, v, count);
}

// The lowest `count` <= 8 bytes of a word, in the widest accesses that its place allows.
static inline void store_bytes(std::uint8_t* target, std::uint64_t word, unsigned count) {
  const std::size_t place = reinterpret_cast<std::size_t>(target);
  if (count % 4 == 0 && place % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(target) = static_cast<std::uint32_t>(word);
    if (count == 8) *reinterpret_cast<std::uint32_t*>(target + 4) = static_cast<std::uint32_t>(word >> 32);
    return;
  }
  for (unsigned done = 0; done < count;) {
    const unsigned left = count - done;
    if (left >= 4 && place % 4 == 0) {
      *reinterpret_cast<std::uint32_t*>(target + done) = static_cast<std::uint32_t>(word >> 8 * done);
      done += 4;
    } else if (left >= 2 && place % 2 == 0) {
      *reinterpret_cast<std::uint16_t*>(target + done) = static_cast<std::uint16_t>(word >> 8 * done);
      done += 2;
    } else {
      target[done] = static_cast<std::uint8_t>(word >> 8 * done);
      done += 1;
    }
  }
}

static inline std::uint64_t load_bytes(const std::uint8_t* source, unsigned count) {
  const std::size_t place = reinterpret_cast<std::size_t>(source);
  if (count == 4 && place % 4 == 0) return *reinterpret_cast<const std::uint32_t*>(source);
  std::uint64_t word = 0;
  for (unsigned done = 0; done < count;) {
    const unsigned left = count - done;
    if (left >= 4 && place % 4 == 0) {
      word |= std::uint64_t(*reinterpret_cast<const std::uint32_t*>(source + done)) << 8 * done;
      done += 4;
    } else if (left >= 2 && place % 2 == 0) {
      word |= std::uint64_t(*reinterpret_cast<const std::uint16_t*>(source + done)) << 8 * done;
      done += 2;
    } else {
      word |= std::uint64_t(source[done]) << 8 * done;
      done += 1;
    }
  }
  return word;
}

}  // namespace device
}  // namespace gq
