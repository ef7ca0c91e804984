// A bound codec as the runtime calls it: functions that encode and decode regions, and what their options are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gq/regions.hpp"

namespace gq::runtime {

// What of a running value is encoded: all, the largest values of a piece, or those of each column.
enum class Selects : int { kNothing, kLargest, kOfColumns };

// The chosen values of an extent, those of one region after the other, indices ascending in each.
struct Kept {
  const std::uint32_t* index = nullptr;
  const float* value = nullptr;
  const std::int64_t* counts = nullptr;  // of each region
  std::size_t count = 0;
  bool finite = true;  // if not, nothing is kept
};

struct Coder;

// What the functions below read, each its own part of it.
struct Options {
  Levels levels;    // of level codecs
  Coding coding;    // of level codecs: how codes are written
  bool l2;          // of level codecs: is the norm Euclidean?
  int bits;         // of EDEN
  bool contracted;  // of EDEN
  int format;       // of plain numbers: 0 float16, 1 bfloat16, 3 float32
  Selects selects;
  std::size_t pi;  // one value in so many is chosen; 0: as k says, or the ratio
  bool separate;   // are positive and negative values chosen apart?
  bool golomb;     // of adaptive: are entries written as Golomb-Rice codes?
  std::size_t k;   // of a whole vector; 0: as the ratio says
  double ratio;
  const Coder* values;   // of sparse codecs: what encodes the chosen values; null for float32
  std::uint64_t bucket;  // its bucket size
  const float* units;    // of codecs with integer sums: one of each segment, or the only one
  std::size_t n_units;
  bool ternary;  // of these: are values rounded at random, to one unit at most?
  int steps;     // of these, with several steps: at most so many units
  bool rotated;
  std::uint32_t terms;  // the most units of a sum
  double clip;  // where each message has a unit of its own: this times the root mean square at most; 0: no limit

  // How many of `elements` values, a part of a vector of `total`, are chosen.
  std::size_t most(std::size_t elements, std::size_t total) const;
};

constexpr std::int64_t kRefused = -1;    // encode: a value cannot be sent; decode: the bytes are no message
constexpr std::int64_t kOutOfRoom = -2;  // no memory
constexpr std::int64_t kTooLarge = -3;   // encode: a sum is larger than any can be

// The places of a running value where something was added, so that only those are looked at.
struct Touched {
  bool anywhere = true;
  std::vector<std::uint32_t> places;
};

// What was counted as values were encoded, and memory to work in.
struct EncodingState {
  std::uint64_t clipped = 0, entries = 0;
  std::vector<float> room;
};

// How a codec keeps and sends sums that lose nothing.
struct ExactSums {
  // y := own values x + e as sums are kept, r := what that lost. False if a value is not finite: it stays in y.
  bool (*begin)(const Options& options, const float* x, const float* e, float* r, float* y, const Regions& regions,
                const Stream* streams, const Kept* kept, Touched& touched, EncodingState& state);
  // Bytes written, kRefused, kTooLarge or kOutOfRoom.
  std::int64_t (*encode)(const Options& options, const float* y, std::uint8_t* wire, const Regions& regions,
                         Touched& touched, EncodingState& state);
  // y := a message, of own values or a sum, or += it. Bytes read, kRefused or kOutOfRoom.
  std::int64_t (*decode)(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                         const Regions& regions, bool add, Touched& touched);
  // A finished sum to values, in place; false if one is not finite.
  bool (*finish)(const Options& options, float* y, const Regions& regions);
};

struct Coder {
  // Bytes written, kRefused or kOutOfRoom; e and r may be null, and so may `kept` where nothing is chosen. With what is
  // chosen r holds x + e already.
  std::int64_t (*encode)(const Options& options, const float* x, const float* e, float* r, std::uint8_t* wire,
                         const Regions& regions, const Stream* streams, const Kept* kept, EncodingState& state);
  // Bytes read, kRefused or kOutOfRoom. `scale` is rounded to float32 if values are that.
  std::int64_t (*decode)(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* y,
                         const Regions& regions, double scale, bool add, bool streaming);
  // Bytes of a message at most; null if the codec may not encode chosen values.
  std::size_t (*bound)(const Options& options, const Regions& regions);
  const ExactSums* sums;  // null if partial sums are encoded as own values are
  Options options;
  // Is the message of several regions those of the regions, end to end?
  bool by_region = false;
  // The same of regions whose vectors lie apart, where nothing is chosen; null: one region after the other.
  std::int64_t (*encode_apart)(const Options& options, const Vectors* vectors, std::uint8_t* wire,
                               const Regions& regions, const Stream* streams) = nullptr;
  std::int64_t (*decode_apart)(const Options& options, const std::uint8_t* wire, std::size_t nbytes, float* const* y,
                               const Regions& regions, double scale) = nullptr;

  // Is a message the values as they lie in memory?
  bool verbatim() const;
};

enum class Family : int {
  kLevels,
  kCodedLevels,
  kEden,
  kOneBit,
  kPlain,
  kWide,
  kAdaptive,
  kSparse,
  kUnion,
  kIntegers,
  kMultiples,
  kTernary
};

// The functions of a family of codecs, with options that are all zero.
Coder coder_of(Family family);
// Of kSparse and kUnion.
Coder sparse_coder_of(Family family);
// Of kIntegers and kMultiples.
Coder integers_coder_of(Family family);

}  // namespace gq::runtime
