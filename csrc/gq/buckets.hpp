// Buckets of level codecs: the kernels, with what is done before and behind them to buckets that are rotated or
// contracted.
#pragma once
#include <memory>
#include <new>

#include "gq/kernels.hpp"
#include "gq/rotated_wire.hpp"

namespace gq {

// The key of the rotations of a message: random bits of its stream that nothing else draws.
inline std::uint64_t rotation_key(Stream stream) {
  std::uint16_t drawn[kKeyBytes / sizeof(std::uint16_t)];
  stream.hop ^= 0x8000;
  kernels().random16(stream, 0, kKeyBytes / sizeof(std::uint16_t), drawn);
  return load<std::uint64_t>(drawn);
}

// Bytes in front of the buckets of a region.
inline std::size_t key_size(const Levels& levels, std::size_t n) { return levels.rotated && n > 0 ? kKeyBytes : 0; }

// The key that a region's message begins with, written if there is one.
inline std::uint64_t put_key(const Levels& levels, std::size_t n, const Stream& stream, std::uint8_t* wire) {
  if (key_size(levels, n) == 0) return 0;
  const std::uint64_t key = rotation_key(stream);
  store(wire, key);
  return key;
}

// Encodes and decodes the buckets of one message after the other, with memory for some of them if they need it.
class Buckets {
 public:
  // `key`: of the rotations. grid and n: of all buckets that there will be.
  Buckets(const Levels& levels, std::uint64_t key, const Grid& grid, std::size_t n);

  explicit operator bool() const { return as_they_are() || values_ != nullptr; }

  // As levels_encode and levels_decode of Kernels.
  int encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, bool l2, const Grid& grid,
             const Stream& stream) const;
  int decode(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n, const Grid& grid, float scale,
             bool add) const;

 private:
  bool as_they_are() const { return !levels_.rotated && !levels_.contracted; }
  bool good_scales(const std::uint8_t* wire, std::size_t n, const Grid& grid) const;
  void shrink(std::uint8_t* scale, double along, double squares) const;
  void contract(const float* v, float* sent, std::uint8_t* wire, std::size_t n, const Grid& grid) const;

  const Levels& levels_;
  std::uint64_t key_;
  std::size_t strip_ = 0;            // values worked on at once
  std::unique_ptr<float[]> values_;  // two strips
};

}  // namespace gq
