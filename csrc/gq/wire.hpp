// Numbers on the wire: little-endian, at any address.
#pragma once
#include "gq/standard.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

constexpr std::uint32_t kMagnitude = 0x7fffffff;  // all bits of a float32 but the sign: its order is that of |v|
constexpr std::uint32_t kInfinity = 0x7f800000;

template <class Number>
inline Number load(const void* wire) {
  Number number;
  std::memcpy(&number, wire, sizeof number);
  return number;
}

template <class Number>
inline void store(void* wire, Number number) {
  std::memcpy(wire, &number, sizeof number);
}

inline std::uint32_t bits_of(float v) { return load<std::uint32_t>(&v); }
inline float float_of(std::uint32_t bits) { return load<float>(&bits); }
inline std::uint32_t magnitude(float v) { return bits_of(v) & kMagnitude; }
inline bool is_finite(float v) { return magnitude(v) < kInfinity; }

// Bytes of n codes of `bits` bits, one after the other.
inline std::size_t packed_size(std::size_t n, int bits) { return (n * bits + 7) / 8; }

}  // namespace
}  // namespace gq
