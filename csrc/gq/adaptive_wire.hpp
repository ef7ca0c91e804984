// Adaptive quantization (Dryden 2016): the kept values of a region as compressed sparse columns, each value as the mean
// of its sign in its column.
//
// Wire of a region of C columns: per column {uint32 offset of its first entry, float32 mean of its kept positive
// values, float32 mean of its kept negative ones}, then uint32 the number of entries, then the entries, columns in
// order, rows ascending: uint16 row << 1 | (1 if positive). The number of entries stands where the offset of one column
// more would.
#pragma once
#include "gq/standard.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace {  // internal linkage: each instruction set keeps a copy compiled for itself

constexpr std::size_t kColumnHeader = sizeof(std::uint32_t) + 2 * sizeof(float);
constexpr std::size_t kEntry = sizeof(std::uint16_t);

inline std::size_t headers_nbytes(std::size_t columns) { return columns * kColumnHeader + sizeof(std::uint32_t); }

inline std::uint32_t entry_offset(const std::uint8_t* wire, std::size_t column) {
  return load<std::uint32_t>(wire + column * kColumnHeader);
}

}  // namespace
}  // namespace gq
