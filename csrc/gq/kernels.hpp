// The kernels of one instruction set as a table of functions, and the table the CPU at hand can run.
//
// Every level (scalar, AVX2, AVX-512) gives the same bytes; the scalar one is the oracle. The headers of this
// folder are compiled three times, by csrc/{scalar,avx2,avx512}.cpp, into three namespaces; nothing here allocates,
// throws, or knows Python or MPI.
#pragma once
#include "gq/standard.hpp"

namespace gq {

// Where the units (columns or buckets) of a flattened vector begin: runs of `run` elements, each cut into `parts`
// nearly equal parts. `start` is the global index of a region's first element.
struct Grid {
  std::uint64_t start;
  std::uint64_t run;
  std::uint64_t parts;
};

// Which random bits: see random.hpp. `hop` has 16 bits.
struct Stream {
  std::uint32_t key0, key1, hop, encoder, step;
};

// Magnitudes that are the numbers of a small floating-point format, numbered from the smallest (0 is zero).
struct SmallFloats {
  int mantissa;  // bits
  int lowest;    // the exponent, biased as a float32's, of the smallest normal number: above `mantissa`
  int last;      // the number of the largest
  bool zero;     // is there a level at zero? Without one the smallest level has number 1, and there is no mantissa.
  // code = (((number ^ (flip if negative)) + (negative if negative)) + positive) & mask
  int flip, negative, positive, mask;
};

// A bucket's scale: its norm over the largest level; the smallest power of two by which the largest level reaches the
// norm; or the power of two of the OCP formats, whose exponent is that of the norm less that of the largest level, so
// that the norm may be up to twice what the largest level reaches. Powers of two are one byte on the wire.
enum class Scale : int { kNorm, kPowerAbove, kPowerOcp };

// What the codes of a level codec stand for, in units of a bucket's scale; what a scale is; how values are rounded.
struct Levels {
  int bits;            // 1 to 8
  int count;           // levels in use, if the codes ascend with them; a code from `count` on is read as the last
  bool uniform;        // level c is float(c * stride - center) * unit; otherwise only the tables say
  int stride;          // 1 with a level at zero, 2 without
  int center;          // s or m: there are 2s + 1 levels with zero, m + 1 = 2^bits without
  float unit;          // 1.0f / float(center)
  float steps;         // from zero to the norm: s or m / 2
  float value[256];    // the level of every code, also of those that are not in use
  float gap[256];      // not uniform: 1.0f / (value[c + 1] - value[c]) for c < count - 1
  bool floating;       // `floats` tells a level from a value's exponent, with the same result as a search of the table
  SmallFloats floats;  // if `floating`
  bool nearest;        // values are rounded to the nearest level, ties to the even number of steps (of a table: to the
                       // greater level); else at random
  float reach;         // the largest level
  Scale scale;
  // What only buckets.hpp looks at:
  bool rotated;     // each bucket is rotated at random before it is encoded
  bool contracted;  // each bucket's scale is made smaller, until the error is the least that these codes allow
};

// How the codes of levels are written: `bits` each, or by an entropy code (coded_wire.hpp).
enum class Coding : int { kFixed, kHuffman, kElias, kRans };

// The pattern of each code, and its bits; none for a code with length 0.
struct PrefixCode {
  int longest;
  std::uint16_t pattern[256];
  std::uint8_t length[256];
};

// Places of levels: levels of one sign count from 1, away from zero.
// Dense: Elias' code of the place, or of one more where a level is zero, which is 1; behind it, but for zero, a bit
// that is 1 for negative levels.
struct EliasCode {
  PrefixCode dense;
  int zero;  // the code of the one level that is zero, or -1
  std::uint8_t negative[256], place[256];
  std::uint32_t places[2];  // of levels that are not negative, and that are
  std::uint8_t code_at[2][257];
};

// What a coder must know of the levels. `elias` and `table`, which finds its dense patterns: of Coding::kElias alone.
struct Entropy {
  Coding coding;
  int bits;
  const EliasCode* elias;
  const std::uint16_t* table;
};

// Bins of levels_spread: 1 + 24 * 16 for either sign.
constexpr std::uint32_t kSpreadBins = 770;

// How own values become multiples of `unit`: by threshold, or ternary at random. See integers.hpp.
struct Quantizer {
  float unit;
  bool ternary;
};

// What becomes of an array's value y by a result v: v, y + v, or y - v.
enum class Put : int { kSet, kAdd, kSubtract };

// How the values of a row become codes of so many bits, see dither.hpp.
//
// nearest
//   is the code that of the nearest whole number of steps, from -offset to most, plus the offset, or `zero` for a value
//   of zero? Else the code has one bit: are value and shift together at least `meeting` steps?
struct Dither {
  int bits;
  bool nearest;
  float offset, most, meeting;
  int zero;
};

// `streaming`: the array written (r or y) is not read again soon, see sink.hpp; it changes no value.
struct Kernels {
  const char* name;

  // cast.hpp. Formats: 0 float16, 1 bfloat16, 2 float64. Return 1 if a result is not finite, else 0.
  int (*widen)(const std::uint8_t* source, float* y, std::size_t n, int format);
  int (*narrow)(const float* x, std::uint8_t* target, std::size_t n, int format);
  int (*add_finite)(const float* x, const float* e, std::uint8_t* y, std::size_t n);
  int (*scale)(float* y, float factor, std::size_t n);
  void (*add)(const std::uint8_t* wire, float* y, std::size_t n);
  int (*all_finite)(const float* x, std::size_t n);

  // products.hpp
  double (*inner_product)(const float* a, const float* b, std::size_t n);

  // factors.hpp: what the comments there say.
  void (*rows_of_factors)(const float* v, std::size_t rows, std::size_t columns, const float* q, std::size_t rank,
                          float* p, std::size_t stride);
  void (*columns_of_factors)(const float* v, std::size_t rows, std::size_t columns, std::size_t begin, std::size_t end,
                             const float* p, std::size_t stride, std::size_t rank, float* q);
  void (*product_of_factors)(const float* p, std::size_t stride, const float* q, std::size_t rank, std::size_t rows,
                             std::size_t columns, Put put, bool packed, float* y);
  void (*pack_factors)(const float* q, std::size_t rank, std::size_t columns, float* packed);

  // dither.hpp: what the comments there say.
  void (*largest_of_rows)(const float* x, std::size_t rows, std::size_t columns, float* largest);
  void (*dither_encode)(const float* x, std::size_t first, std::size_t n, std::size_t columns, const float* step,
                        const Dither& dither, const Stream& stream, std::uint64_t begin, std::uint8_t* wire);
  void (*dither_decode)(const std::uint8_t* wire, std::size_t first, std::size_t n, std::size_t columns,
                        const float* step, const float* number, int bits, bool shifts, int zero, const Stream& stream,
                        std::uint64_t begin, float* y);

  // plain.hpp. Formats: 0 float16, 1 bfloat16, 3 float32. Return 1 if a value on the wire is not finite, else 0.
  int (*plain_encode)(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, int format);
  int (*plain_decode)(const std::uint8_t* wire, float* y, std::size_t n, int format, float scale, bool add,
                      bool streaming);

  // onebit.hpp. Encoders and decoders return the bytes written or read, -1 if a value or a mean is not finite.
  std::size_t (*onebit_nbytes)(const Grid& grid, std::size_t n);
  std::int64_t (*onebit_encode)(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                                const Grid& grid);
  std::int64_t (*onebit_decode)(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid, float scale);
  std::int64_t (*onebit_decode_add)(const std::uint8_t* wire, float* y, std::size_t n, const Grid& grid);

  // select.hpp
  std::size_t (*collect)(const float* x, const float* e, float* r, std::size_t n, std::uint32_t floor_bits,
                         std::uint32_t first, std::uint32_t* index, float* value, std::size_t capacity, bool streaming);
  void (*histogram)(const float* x, const float* e, std::size_t n, std::int64_t* counts);
  std::uint32_t (*kth)(const float* value, std::size_t n, std::size_t k, int sign, std::size_t* above);
  std::size_t (*keep)(std::uint32_t* index, float* value, std::size_t n, std::uint32_t positive_bits,
                      std::uint32_t negative_bits, std::int64_t* ties, bool joint);
  void (*count_signs)(const float* v, std::size_t n, std::size_t* positives, std::size_t* negatives);

  // columns.hpp. -1 if a value is not finite.
  std::size_t (*select_bound)(const Grid& grid, std::size_t n, std::size_t pi);
  std::int64_t (*select_columns)(const float* x, const float* e, float* r, std::size_t n, const Grid& grid,
                                 std::size_t pi, bool separate, std::uint32_t first, std::uint32_t* index,
                                 float* value);
  std::int64_t (*select_most)(const float* x, const float* e, float* r, std::size_t n, std::size_t k, bool separate,
                              std::uint32_t* index, float* value);

  // adaptive.hpp. -1 if a value is not finite or the message is malformed.
  std::int64_t (*adaptive_encode)(const std::uint32_t* index, const float* value, std::size_t count, float* r,
                                  std::uint8_t* wire, std::size_t n, const Grid& grid);
  std::int64_t (*adaptive_nbytes)(const std::uint8_t* wire, std::size_t nbytes, std::size_t columns);
  int (*adaptive_decode)(const std::uint8_t* wire, std::size_t columns, std::size_t first_column, float* y,
                         std::size_t n, const Grid& grid, float scale, bool streaming);
  int (*adaptive_decode_add)(const std::uint8_t* wire, std::size_t columns, std::size_t first_column, float* y,
                             std::size_t n, const Grid& grid);

  // golomb.hpp: what the comments there say.
  std::size_t (*golomb_encode)(const std::uint8_t* wire, std::size_t columns, std::uint8_t* out);
  bool (*golomb_sizes)(const std::uint8_t* wire, std::size_t nbytes, std::size_t columns, std::size_t size,
                       std::size_t& coded, std::size_t& entries);
  bool (*golomb_decode)(const std::uint8_t* wire, std::size_t columns, std::uint8_t* out);

  // random.hpp and bits.hpp
  void (*philox)(std::uint32_t word[4], std::uint32_t key0, std::uint32_t key1);
  void (*random16)(const Stream& stream, std::uint64_t first, std::size_t count, std::uint16_t* out);
  void (*pack)(const std::uint8_t* code, std::size_t n, int bits, std::uint8_t* out);
  void (*unpack)(const std::uint8_t* in, std::size_t n, int bits, std::uint8_t* code);

  // levels.hpp. Encoders and decoders return 0 if all is well, 1 if a value or a norm is not finite.
  int (*levels_encode)(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                       const Levels& levels, bool l2, const Grid& grid, const Stream& stream);
  int (*levels_decode)(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n, const Levels& levels,
                       const Grid& grid, float scale, bool add);
  void (*levels_spread)(const float* x, const float* e, std::size_t n, bool l2, int power, const Grid& grid,
                        double* weight);

  // coded.hpp: what the comments there say.
  std::size_t (*coded_encode)(const Entropy& entropy, const std::uint8_t* code, std::size_t n, std::size_t scales,
                              std::uint8_t* out);
  bool (*coded_decode)(const Entropy& entropy, int form, const std::uint8_t* in, std::size_t nbytes, std::uint8_t* code,
                       std::size_t n);
  void (*prefix_table)(const PrefixCode& prefix, std::uint16_t* table);

  // rotation.hpp and eden.hpp: what the comments there say.
  void (*rotate)(const float* x, float* y, std::size_t n, const Grid& grid, std::uint64_t key, int rounds, bool back);
  int (*eden_encode)(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, int bits,
                     bool contracted, const Grid& grid, std::uint64_t key, float* room, std::uint8_t* code);
  int (*eden_decode)(const std::uint8_t* wire, float* y, std::size_t n, int bits, const Grid& grid, std::uint64_t key,
                     float scale, bool add, float* room, std::uint8_t* code);

  // integers.hpp: what the comments there say.
  void (*measure)(const float* x, const float* e, std::size_t n, bool squares, std::uint32_t* largest, double* sum);
  int (*integers_quantize)(const float* x, const float* e, float* r, float* m, std::size_t n,
                           const Quantizer& quantizer, std::uint64_t first, const Stream& stream, std::size_t* clipped);
  std::int64_t (*integers_encode_own)(const float* x, const float* e, float* r, std::uint8_t* sizes, std::uint8_t* wire,
                                      std::size_t n, const Quantizer& quantizer, std::uint64_t first,
                                      const Stream& stream, std::size_t* clipped);
  std::int64_t (*integers_encode)(const float* m, std::uint8_t* sizes, std::uint8_t* wire, std::size_t n, float unit,
                                  std::uint32_t terms);
  int (*integers_decode)(const std::uint8_t* sizes, const std::uint8_t* wire, float* y, std::size_t n, float unit,
                         float scale, bool add, std::uint32_t terms);

  // multiples.hpp: what the comments there say.
  double (*largest_deviation)(const float* x, const float* e, std::size_t n, const Grid& grid, double clip);
  void (*multiples_round)(const float* v, float* m, std::size_t n, float unit, int steps, std::uint64_t first,
                          const Stream& stream, std::size_t* clipped);
};

const Kernels& kernels();          // the level in use
bool use_level(const char* name);  // false if unknown or not supported by this CPU
const char* best_level();          // the highest level of this CPU

}  // namespace gq
