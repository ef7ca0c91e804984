// EDEN (Vargaftik et al. 2022), with one bit DRIVE (2021): every bucket is rotated at random, and each value becomes
// the nearest of the 2^bits levels that are best for a normal distribution; a scale per bucket makes that unbiased.
//
// Wire of a region: 64 bits, the key of its rotations (buckets.hpp); then per stretch of a bucket (eden_wire.hpp) a
// float32 scale and codes of `bits` bits (bits.hpp), ascending with the levels; of a stretch with few values these
// themselves, as float32.
#pragma once
#include "gq/bits.hpp"
#include "gq/cast.hpp"
#include "gq/eden_wire.hpp"
#include "gq/grid.hpp"
#include "gq/kernels.hpp"
#include "gq/levels.hpp"
#include "gq/products.hpp"
#include "gq/rotation.hpp"
#include "gq/sum.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// The levels above zero that minimise the mean squared error of a standard normal distribution (Lloyd 1982, Max 1960).
constexpr float kNormalLevels[4][8] = {
    {0.7978845608028654f},
    {0.4527800346364921f, 1.510417608499096f},
    {0.24509417894422184f, 0.7560052812058781f, 1.3439092785050006f, 2.1519457045369874f},
    {0.12839502985114726f, 0.38804829949029185f, 0.6567591185324659f, 0.9423404564869651f, 1.2562311973471791f,
     1.6180463860218859f, 2.069017226531388f, 2.7325895709951626f},
};

// Levels of both signs, ascending, and the boundaries between their magnitudes: boundary[k] lies below the k-th.
struct NormalLevels {
  explicit NormalLevels(int bits) : bits(bits), half(1 << (bits - 1)) {
    for (int k = 0; k < half; ++k) {
      value[half + k] = kNormalLevels[bits - 1][k];
      value[half - 1 - k] = -kNormalLevels[bits - 1][k];
      if (k > 0) boundary[k] = (kNormalLevels[bits - 1][k - 1] + kNormalLevels[bits - 1][k]) / 2;
    }
  }

  float largest() const { return value[2 * half - 1]; }

  int bits, half;
  float value[16] = {}, boundary[16] = {};
};

// Codes of n values v = y / unit, and their levels times y * unit.before. kHalf is levels.half.
template <int kHalf>
static inline void nearest_codes(const NormalLevels& levels, const float* y, std::size_t n, const Unit& unit,
                                 std::uint8_t* code, float* product) {
  std::size_t i = 0;
#if GQ_LEVEL >= 1
  const Table level(levels.value), boundary(levels.boundary);
  for (; i + kGroup <= n; i += kGroup) {
    Ints part[4];
#pragma GCC unroll 4
    for (std::size_t q = 0; q < 4; ++q) {
      const std::size_t at = i + q * kWidth;
      const Floats v = load<Floats>(y + at) * unit.before;
      const Floats size = (Floats)((Ints)(v * unit.inverse) & 0x7fffffff);
      Ints above = {};  // boundaries below the magnitude, found bit by bit
#pragma GCC unroll 3
      for (int bit = kHalf / 2; bit > 0; bit >>= 1) above = boundary[above | bit] < size ? above | bit : above;
      part[q] = (above + kHalf) ^ ((Ints)v >> 31 & (2 * kHalf - 1));
      store(product + at, level[part[q]] * v);
    }
    store(code + i, narrow_to_bytes(part[0], part[1], part[2], part[3]));
  }
#endif
  for (; i < n; ++i) {
    const float v = y[i] * unit.before, size = float_of(magnitude(v * unit.inverse));
    int above = 0;
    for (int k = 1; k < kHalf; ++k) above += size > levels.boundary[k];
    code[i] = static_cast<std::uint8_t>(bits_of(v) >> 31 ? kHalf - 1 - above : kHalf + above);
    product[i] = levels.value[code[i]] * v;
  }
}

static inline void nearest_codes(const NormalLevels& levels, const float* y, std::size_t n, const Unit& unit,
                                 std::uint8_t* code, float* product) {
  if (levels.half == 1) return nearest_codes<1>(levels, y, n, unit, code, product);
  if (levels.half == 2) return nearest_codes<2>(levels, y, n, unit, code, product);
  if (levels.half == 4) return nearest_codes<4>(levels, y, n, unit, code, product);
  nearest_codes<8>(levels, y, n, unit, code, product);
}

static inline void levels_of_codes(const NormalLevels& levels, const std::uint8_t* code, std::size_t n, float scale,
                                   float* y) {
  std::size_t i = 0;
#if GQ_LEVEL >= 1
  const Table table(levels.value);
  for (; i + kWidth <= n; i += kWidth) store(y + i, table[load_bytes(code + i)] * scale);
#endif
  for (; i < n; ++i) y[i] = levels.value[code[i]] * scale;
}

// The scale: |v|^2 / <level, rotated>, which is unbiased, or with feedback (`contracted`) <level, rotated> / |level|^2,
// which has the least error; zero if all values are, or so small that there is none; y: the rotated
// values. -1 for a norm beyond what may be sent. `product` is room for n values.
static inline float eden_codes(const NormalLevels& levels, float* y, std::size_t n, double squares, bool contracted,
                               std::uint8_t* code, float* product) {
  const auto norm = static_cast<float>(__builtin_sqrt(squares));
  if (!is_norm(norm)) return -1.0f;
  const Unit unit = unit_of_norm(norm, static_cast<float>(__builtin_sqrt(double(n))));
  nearest_codes(levels, y, n, unit, code, product);
  double along = 0;
  for (std::size_t done = 0; done < n; done += kSumBlock)
    along += block_sum(product + done, n - done < kSumBlock ? n - done : kSumBlock, Itself());
  if (!(along > 0)) return 0.0f;
  if (contracted) levels_of_codes(levels, code, n, 1.0f, product);
  const double levels_squared = contracted ? inner_product(product, product, n) : 0.0;
  const double before = double(unit.before);
  const auto scale = static_cast<float>(contracted ? along / levels_squared / before : squares / along * before);
  return is_rotated_scale(scale, levels.largest(), n) ? scale : -1.0f;
}

// A stretch, whose first value is element `first` of the vector; 1 if it cannot be sent. `room` and `code` as below.
static int eden_encode_stretch(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n,
                               const NormalLevels& levels, bool contracted, Rotation& rotation, std::uint64_t first,
                               float* room, std::uint8_t* code) {
  add_finite(x, e, reinterpret_cast<std::uint8_t*>(room), n);
  const double squares = sum_of_squares(room, nullptr, n);
  rotation.turn(room, n, first, eden_rounds(n));
  const float scale = eden_codes(levels, room, n, squares, contracted, code, room + n);
  if (scale < 0) return 1;
  store(wire, scale);
  pack(code, n, levels.bits, wire + kNormBytes);
  if (!r) return 0;
  levels_of_codes(levels, code, n, scale, room);
  rotation.turn_back(room, n, first, eden_rounds(n));
  add_finite(x, e, reinterpret_cast<std::uint8_t*>(r), n);
  for (std::size_t i = 0; i < n; ++i) r[i] -= room[i];
  return 0;
}

static int eden_encode_few(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n) {
  if (add_finite(x, e, wire, n)) return 1;
  if (r) std::memset(r, 0, n * sizeof(float));
  return 0;
}

// `room` has twice as many floats, and `code` as many bytes, as a bucket has values.
static int eden_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, int bits,
                       bool contracted, const Grid& grid, std::uint64_t key, float* room, std::uint8_t* code) {
  const NormalLevels levels(bits);
  Rotation rotation(key, grid.start + n);
  int bad = 0;
  for (Units unit(grid, n); unit.inside(); unit.advance())
    for (std::size_t at = unit.begin, stretch; at < unit.end; at += stretch) {
      stretch = eden_stretch(unit.end - at);
      const float *const v = x + at, *const w = e ? e + at : nullptr;
      float* const to = r ? r + at : nullptr;
      if (stretch < kLeastRotated)
        bad |= eden_encode_few(v, w, to, wire, stretch);
      else
        bad |= eden_encode_stretch(v, w, to, wire, stretch, levels, contracted, rotation, grid.start + at, room, code);
      wire += eden_stretch_size(stretch, bits);
    }
  return bad;
}

// The values of a stretch in `room`; false if its scale is none.
static bool eden_decode_stretch(const std::uint8_t* wire, std::size_t n, const NormalLevels& levels, Rotation& rotation,
                                std::uint64_t first, float* room, std::uint8_t* code) {
  if (n < kLeastRotated) {
    std::memcpy(room, wire, n * sizeof(float));
    bool finite = true;
    for (std::size_t i = 0; i < n; ++i) finite &= is_finite(room[i]);
    return finite;
  }
  const float scale = load<float>(wire);
  if (!is_rotated_scale(scale, levels.largest(), n)) return false;
  unpack(wire + kNormBytes, n, levels.bits, code);
  levels_of_codes(levels, code, n, scale, room);
  rotation.turn_back(room, n, first, eden_rounds(n));
  return true;
}

static int eden_decode(const std::uint8_t* wire, float* y, std::size_t n, int bits, const Grid& grid, std::uint64_t key,
                       float scale, bool add, float* room, std::uint8_t* code) {
  const NormalLevels levels(bits);
  Rotation rotation(key, grid.start + n);
  for (Units unit(grid, n); unit.inside(); unit.advance())
    for (std::size_t at = unit.begin, stretch; at < unit.end; at += stretch) {
      stretch = eden_stretch(unit.end - at);
      if (!eden_decode_stretch(wire, stretch, levels, rotation, grid.start + at, room, code)) return 1;
      wire += eden_stretch_size(stretch, bits);
      float* const to = y + at;
      for (std::size_t i = 0; i < stretch; ++i) to[i] = add ? to[i] + room[i] : room[i] * scale;
    }
  return 0;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
