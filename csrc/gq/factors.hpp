// A matrix V of rows x columns and two thin ones, P of rows x rank and Q of columns x rank: products of one and the
// other. P and Q lie rank by rank: p[k * stride + i] and q[k * columns + j]. V, y lie row by row.
//
// The order of additions is the same for all instruction sets. Over the columns (rows_of_factors): element j goes to
// lane j mod 16, each lane adds in order, then the lanes fold: lane[j] += lane[j + 8] for j < 8, then 4, 2, 1. Over
// rows: in order. Over ranks: in order, but of more than 256 each 256 have a sum, and these are added in order.
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

// y := sum, or y plus or minus it (factors_doors.hpp), of up to 16 columns.
static inline __attribute__((always_inline)) void put_lanes(const FactorLanes& sum, std::size_t n, Put put, float* y) {
  FactorLanes result = sum;
  if (put != Put::kSet) {
    if (n == kFactorLanes)
      load_lanes(result, y);
    else
      load_some(result, y, n);
    for (std::size_t q = 0; q < sizeof sum / sizeof sum.part[0]; ++q)
      result.part[q] = put == Put::kAdd ? result.part[q] + sum.part[q] : result.part[q] - sum.part[q];
  }
  if (n == kFactorLanes) return store_lanes(result, y);
  float room[kFactorLanes];
  store_lanes(result, room);
  std::memcpy(y, room, n * sizeof(float));
}

// y := the product of P and the transposed Q, of `kRows` rows and few ranks.
template <int kRows>
static void product_rows(const float* p, std::size_t stride, const float* q, std::size_t rank, std::size_t columns,
                         Put put, float* y) {
  for (std::size_t j = 0; j < columns; j += kFactorLanes) {
    FactorLanes sum[kRows] = {}, a;
    const std::size_t n = columns - j < kFactorLanes ? columns - j : kFactorLanes;
    for (std::size_t k = 0; k < rank; ++k) {
      if (n == kFactorLanes)
        load_lanes(a, q + k * columns + j);
      else
        load_some(a, q + k * columns + j, n);
      for (int i = 0; i < kRows; ++i) add_multiple(sum[i], a, p[k * stride + i]);
    }
    for (int i = 0; i < kRows; ++i) put_lanes(sum[i], n, put, y + i * columns + j);
  }
}

constexpr std::size_t kPanel = 2 * kFactorLanes;  // columns

// The same of a panel of columns, whose numbers of Q lie end to end, rank by rank.
template <int kRows>
static void product_panel(const float* p, std::size_t stride, const float* panel, std::size_t rank, std::size_t n,
                          std::size_t columns, Put put, float* y) {
  FactorLanes low[kRows] = {}, high[kRows] = {}, a, b;
  for (std::size_t k = 0; k < rank; ++k) {
    load_lanes(a, panel + k * kPanel);
    load_lanes(b, panel + k * kPanel + kFactorLanes);
    for (int i = 0; i < kRows; ++i) {
      add_multiple(low[i], a, p[k * stride + i]);
      add_multiple(high[i], b, p[k * stride + i]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    put_lanes(low[i], n < kFactorLanes ? n : kFactorLanes, put, y + i * columns);
    if (n > kFactorLanes) put_lanes(high[i], n - kFactorLanes, put, y + i * columns + kFactorLanes);
  }
}

constexpr std::size_t kTogether = 256;  // ranks

// Q in panels, one after the other: of each the numbers of its columns, zeros beyond the last, rank by rank.
static void pack_factors(const float* q, std::size_t rank, std::size_t columns, float* packed) {
  for (std::size_t j = 0; j < columns; j += kPanel) {
    const std::size_t n = columns - j < kPanel ? columns - j : kPanel;
    for (std::size_t k = 0; k < rank; ++k, packed += kPanel) {
      std::memset(packed, 0, kPanel * sizeof(float));
      std::memcpy(packed, q + k * columns + j, n * sizeof(float));
    }
  }
}

// Of Q in panels, the ranks from `first` on, `some` of them.
static void product_of_panels(const float* p, std::size_t stride, const float* packed, std::size_t rank,
                              std::size_t first, std::size_t some, std::size_t rows, std::size_t columns, Put put,
                              float* y) {
  constexpr int kRows = GQ_LEVEL == 2 ? 8 : 2;  // as many sums as there are registers for
  const float* panel = packed + first * kPanel;
  for (std::size_t j = 0; j < columns; j += kPanel, panel += rank * kPanel) {
    const std::size_t n = columns - j < kPanel ? columns - j : kPanel;
    std::size_t i = 0;
    for (; i + kRows <= rows; i += kRows)
      product_panel<kRows>(p + first * stride + i, stride, panel, some, n, columns, put, y + i * columns + j);
    for (; i < rows; ++i)
      product_panel<1>(p + first * stride + i, stride, panel, some, n, columns, put, y + i * columns + j);
  }
}

static void product_of_rows(const float* p, std::size_t stride, const float* q, std::size_t rank, std::size_t rows,
                            std::size_t columns, Put put, float* y) {
  std::size_t i = 0;
  for (; i + 4 <= rows; i += 4) product_rows<4>(p + i, stride, q, rank, columns, put, y + i * columns);
  for (; i < rows; ++i) product_rows<1>(p + i, stride, q, rank, columns, put, y + i * columns);
}

// y := the product of P and the transposed Q, or y plus or minus it. Up to 256 ranks are added in order; of more, the
// sums of each 256. If `packed`, Q is in panels, which pays where the ranks are more than a few.
static void product_of_factors(const float* p, std::size_t stride, const float* q, std::size_t rank, std::size_t rows,
                               std::size_t columns, Put put, bool packed, float* y) {
  for (std::size_t k = 0; k < rank; k += kTogether) {
    const std::size_t some = rank - k < kTogether ? rank - k : kTogether;
    if (packed)
      product_of_panels(p, stride, q, rank, k, some, rows, columns, put, y);
    else
      product_of_rows(p + k * stride, stride, q + k * columns, some, rows, columns, put, y);
    if (put == Put::kSet) put = Put::kAdd;
  }
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
