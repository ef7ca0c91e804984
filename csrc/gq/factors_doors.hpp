// Products of a matrix and its factors, see factors.hpp. The first is that of a block of rows from `first` on; P and Q
// are those of the whole matrix.
#pragma once
#include <cstddef>

#include "gq/kernels.hpp"

namespace gq {

// Of a matrix V: a block of its rows, all of which has `all` rows; of which rank P and Q are.
struct Block {
  std::size_t first, rows, columns, all, rank;
};

// The block's rows of P := V Q.
void rows_of_factors(const float* v, const Block& block, const float* q, float* p);

// Q += transposed V P, of the block's rows.
void columns_of_factors(const float* v, const Block& block, const float* p, float* q);

// The block y of rows := P transposed Q, or that is added or subtracted; Q as it is, or `packed` in panels of columns.
void product_of_factors(const float* p, const float* q, const Block& block, Put put, bool packed, float* y);

// Q in panels of `packed_columns` in all.
void pack_factors(const float* q, std::size_t rank, std::size_t columns, float* packed);
constexpr std::size_t packed_columns(std::size_t columns) { return (columns + 31) / 32 * 32; }

// The `rank` vectors of `size` elements, end to end, are made orthonormal, one after the other; zeros if what is left
// of one by those before is next to nothing.
void orthonormalize(float* p, std::size_t size, std::size_t rank);

}  // namespace gq
