#include "gq/factors_doors.hpp"

#include <cmath>

#include "gq/door.hpp"

namespace gq {

namespace {

// A vector shorter than this, compared with what it was, is what rounding left.
constexpr double kNextToNothing = 1.0 / (1 << 20);

double squares(const float* v, std::size_t n) { return kernels().inner_product(v, v, n); }

}  // namespace

void rows_of_factors(const float* v, const Block& block, const float* q, float* p) {
  const int count = threads_for(block.rows * block.columns);
  on_threads(count, [&](int thread) {
    const std::size_t begin = block.rows * thread / count, end = block.rows * (thread + 1) / count;
    kernels().rows_of_factors(v + begin * block.columns, end - begin, block.columns, q, block.rank,
                              p + block.first + begin, block.all);
    return 0;
  });
}

void columns_of_factors(const float* v, const Block& block, const float* p, float* q) {
  const int count = threads_for(block.rows * block.columns);
  on_threads(count, [&](int thread) {
    const Piece piece = piece_of(block.columns, thread, count);
    kernels().columns_of_factors(v, block.rows, block.columns, piece.begin, piece.end, p + block.first, block.all,
                                 block.rank, q);
    return 0;
  });
}

void pack_factors(const float* q, std::size_t rank, std::size_t columns, float* packed) {
  kernels().pack_factors(q, rank, columns, packed);
}

void product_of_factors(const float* p, const float* q, const Block& block, Put put, bool packed, float* y) {
  const int count = threads_for(block.rows * block.columns);
  on_threads(count, [&](int thread) {
    const std::size_t begin = block.rows * thread / count, end = block.rows * (thread + 1) / count;
    kernels().product_of_factors(p + block.first + begin, block.all, q, block.rank, end - begin, block.columns, put,
                                 packed, y + begin * block.columns);
    return 0;
  });
}

void orthonormalize(float* p, std::size_t size, std::size_t rank) {
  const FloatGuard guard;
  for (std::size_t k = 0; k < rank; ++k) {
    float* const mine = p + k * size;
    const double before = squares(mine, size);
    for (int pass = 0; pass < 2; ++pass)  // the second takes what rounding left in the first
      for (std::size_t other = 0; other < k; ++other) {
        const float* const done = p + other * size;
        const double share = kernels().inner_product(mine, done, size);
        for (std::size_t i = 0; i < size; ++i) mine[i] = static_cast<float>(mine[i] - share * done[i]);
      }
    const double after = squares(mine, size);
    const bool nothing = !(after > before * kNextToNothing * kNextToNothing);
    const double factor = nothing ? 0.0 : 1.0 / std::sqrt(after);
    for (std::size_t i = 0; i < size; ++i) mine[i] = nothing ? 0.0f : static_cast<float>(mine[i] * factor);
  }
}

}  // namespace gq
