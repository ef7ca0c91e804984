// A matrix V of rows x columns and two thin ones, P of rows x rank and Q of columns x rank: products of one and the
// other. P and Q lie rank by rank: p[k * stride + i] and q[k * columns + j]. V, y lie row by row.
//
// The order of additions is the same for all instruction sets. Over the columns (rows_of_factors): element j goes to
// lane j mod 16, each lane adds in order, then the lanes fold: lane[j] += lane[j + 8] for j < 8, then 4, 2, 1. Over
// rows and over ranks: in order.
#pragma once
#include "gq/kernels.hpp"
#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr std::size_t kFactorLanes = 16;

// 16 running sums of float32.
struct FactorLanes {
#if GQ_LEVEL >= 1
  static constexpr std::size_t kParts = kFactorLanes / kWidth;
  Floats part[kParts] = {};
#else
  float part[kFactorLanes] = {};
#endif
};

static inline __attribute__((always_inline)) void load_lanes(FactorLanes& to, const float* v) {
#if GQ_LEVEL >= 1
  for (std::size_t q = 0; q < FactorLanes::kParts; ++q) to.part[q] = load<Floats>(v + q * kWidth);
#else
  std::memcpy(to.part, v, sizeof to.part);
#endif
}

// The first n < 16, and zeros.
static inline __attribute__((always_inline)) void load_some(FactorLanes& to, const float* v, std::size_t n) {
  float room[kFactorLanes] = {};
  std::memcpy(room, v, n * sizeof(float));
  load_lanes(to, room);
}

static inline __attribute__((always_inline)) void store_lanes(const FactorLanes& from, float* v) {
  std::memcpy(v, from.part, sizeof from);
}

// sum += a * b.
static inline __attribute__((always_inline)) void add_product(FactorLanes& sum, const FactorLanes& a,
                                                              const FactorLanes& b) {
  for (std::size_t q = 0; q < sizeof sum / sizeof sum.part[0]; ++q) sum.part[q] += a.part[q] * b.part[q];
}

static inline __attribute__((always_inline)) void add_multiple(FactorLanes& sum, const FactorLanes& a, float b) {
  for (std::size_t q = 0; q < sizeof sum / sizeof sum.part[0]; ++q) sum.part[q] += a.part[q] * b;
}

static inline __attribute__((always_inline)) float fold_lanes(const FactorLanes& lanes) {
  float lane[kFactorLanes];
  std::memcpy(lane, lanes.part, sizeof lane);
  for (std::size_t width = kFactorLanes / 2; width > 0; width /= 2)
    for (std::size_t j = 0; j < width; ++j) lane[j] += lane[j + width];
  return lane[0];
}

// p[k * stride + i] = the product of row i of v, of `kRows`, with row k of q, of `kCount`.
template <int kRows, int kCount>
static void some_of_factors(const float* v, std::size_t columns, const float* q, float* p, std::size_t stride) {
  FactorLanes sum[kRows][kCount], a[kRows], b;
  std::size_t j = 0;
  for (; j + kFactorLanes <= columns; j += kFactorLanes) {
    for (int i = 0; i < kRows; ++i) load_lanes(a[i], v + i * columns + j);
    for (int k = 0; k < kCount; ++k) {
      load_lanes(b, q + k * columns + j);
      for (int i = 0; i < kRows; ++i) add_product(sum[i][k], a[i], b);
    }
  }
  if (j < columns) {
    for (int i = 0; i < kRows; ++i) load_some(a[i], v + i * columns + j, columns - j);
    for (int k = 0; k < kCount; ++k) {
      load_some(b, q + k * columns + j, columns - j);
      for (int i = 0; i < kRows; ++i) add_product(sum[i][k], a[i], b);
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int k = 0; k < kCount; ++k) p[k * stride + i] = fold_lanes(sum[i][k]);
}

template <int kRows>
static void rows_with_all(const float* v, std::size_t columns, const float* q, std::size_t rank, float* p,
                          std::size_t stride) {
  std::size_t k = 0;
  for (; k + 4 <= rank; k += 4) some_of_factors<kRows, 4>(v, columns, q + k * columns, p + k * stride, stride);
  for (; k < rank; ++k) some_of_factors<kRows, 1>(v, columns, q + k * columns, p + k * stride, stride);
}

// P of these rows of V: p = V q.
static void rows_of_factors(const float* v, std::size_t rows, std::size_t columns, const float* q, std::size_t rank,
                            float* p, std::size_t stride) {
  constexpr int kRows = GQ_LEVEL == 2 ? 4 : 1;  // as many sums as there are registers for
  std::size_t i = 0;
  for (; i + kRows <= rows; i += kRows) rows_with_all<kRows>(v + i * columns, columns, q, rank, p + i, stride);
  for (; i < rows; ++i) rows_with_all<1>(v + i * columns, columns, q, rank, p + i, stride);
}

// The columns from `begin` to `end` of `kRows` rows of V, times their numbers in one rank of P, are added to that of Q.
template <int kRows>
static void add_rows(const float* v, std::size_t columns, std::size_t begin, std::size_t end, const float* p,
                     float* q) {
  FactorLanes sum, a;
  std::size_t j = begin;
  for (; j + kFactorLanes <= end; j += kFactorLanes) {
    load_lanes(sum, q + j);
    for (int i = 0; i < kRows; ++i) {
      load_lanes(a, v + i * columns + j);
      add_multiple(sum, a, p[i]);
    }
    store_lanes(sum, q + j);
  }
  for (; j < end; ++j)
    for (int i = 0; i < kRows; ++i) q[j] += v[i * columns + j] * p[i];
}

// Columns `begin` to `end` of Q: q += the transposed V times p, of these rows.
static void columns_of_factors(const float* v, std::size_t rows, std::size_t columns, std::size_t begin,
                               std::size_t end, const float* p, std::size_t stride, std::size_t rank, float* q) {
  constexpr int kRows = 8;
  std::size_t i = 0;
  for (; i + kRows <= rows; i += kRows)
    for (std::size_t k = 0; k < rank; ++k)
      add_rows<kRows>(v + i * columns, columns, begin, end, p + k * stride + i, q + k * columns);
  for (; i < rows; ++i)
    for (std::size_t k = 0; k < rank; ++k)
      add_rows<1>(v + i * columns, columns, begin, end, p + k * stride + i, q + k * columns);
}

// y (or y minus it) := the product of P and the transposed Q, of `kRows` rows.
template <int kRows>
static void product_rows(const float* p, std::size_t stride, const float* q, std::size_t rank, std::size_t columns,
                         bool subtract, float* y) {
  std::size_t j = 0;
  for (; j + kFactorLanes <= columns; j += kFactorLanes) {
    FactorLanes sum[kRows], a;
    for (std::size_t k = 0; k < rank; ++k) {
      load_lanes(a, q + k * columns + j);
      for (int i = 0; i < kRows; ++i) add_multiple(sum[i], a, p[k * stride + i]);
    }
    for (int i = 0; i < kRows; ++i) {
      if (subtract) {
        load_lanes(a, y + i * columns + j);
        for (std::size_t part = 0; part < sizeof a / sizeof a.part[0]; ++part)
          sum[i].part[part] = a.part[part] - sum[i].part[part];
      }
      store_lanes(sum[i], y + i * columns + j);
    }
  }
  for (; j < columns; ++j)
    for (int i = 0; i < kRows; ++i) {
      float sum = 0;
      for (std::size_t k = 0; k < rank; ++k) sum += q[k * columns + j] * p[k * stride + i];
      y[i * columns + j] = subtract ? y[i * columns + j] - sum : sum;
    }
}

static void product_of_factors(const float* p, std::size_t stride, const float* q, std::size_t rank, std::size_t rows,
                               std::size_t columns, bool subtract, float* y) {
  constexpr int kRows = 4;
  std::size_t i = 0;
  for (; i + kRows <= rows; i += kRows) product_rows<kRows>(p + i, stride, q, rank, columns, subtract, y + i * columns);
  for (; i < rows; ++i) product_rows<1>(p + i, stride, q, rank, columns, subtract, y + i * columns);
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
