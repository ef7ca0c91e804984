// A bound codec as the runtime calls it: functions that encode and decode regions, and what their options are.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gq/regions.hpp"

namespace gq::runtime {

// What the functions below read, each its own part of it.
struct Options {
  Levels levels;    // of level codecs
  Coding coding;    // of level codecs: how codes are written
  bool l2;          // of level codecs: is the norm Euclidean?
  int bits;         // of EDEN
  bool contracted;  // of EDEN
  int format;       // of plain numbers: 0 float16, 1 bfloat16, 3 float32
};

constexpr std::int64_t kRefused = -1;    // encode: a value cannot be sent; decode: the bytes are no message
constexpr std::int64_t kOutOfRoom = -2;  // no memory

struct Coder {
  // Bytes written, kRefused or kOutOfRoom; e and r may be null.
  std::int64_t (*encode)(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                         const Regions& regions, const Stream* streams);
  // Bytes read, kRefused or kOutOfRoom.
  std::int64_t (*decode)(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                         const Regions& regions, float scale, bool add, bool streaming);
  Options options;
};

enum class Family : int { kLevels, kCodedLevels, kEden, kOneBit, kPlain };

// The functions of a family of codecs, with options that are all zero.
Coder coder_of(Family family);

}  // namespace gq::runtime
