// What a kernel knows of its place in the grid, and how threads meet. A kernel written with these names alone compiles
// for a GPU, and for the CPU as a serial grid (tests/cuda/serial.hpp): blocks and threads one after the other, each
// thread from one meeting to the next.
#pragma once
#define GQ_LEVEL 0
#define GQ_NAMESPACE device
#include "gq/standard.hpp"

#ifdef __CUDACC__
#define GQ_KERNEL extern "C" __global__ void
// Registers for so many threads in a block and, where given, so many blocks at a time on a multiprocessor.
#define GQ_THREADS(...) __launch_bounds__(__VA_ARGS__)
#define GQ_SHARED __shared__
#define GQ_UNROLL _Pragma("unroll")

namespace gq {
namespace device {

static inline unsigned thread_index() { return threadIdx.x; }
static inline unsigned threads_per_block() { return blockDim.x; }
static inline unsigned block_index() { return blockIdx.x; }
static inline unsigned blocks_per_grid() { return gridDim.x; }

// All threads of a block, or of a warp, meet; what they wrote before is seen after.
static inline void block_barrier() { __syncthreads(); }
static inline void warp_barrier() { __syncwarp(); }

// The value of another lane of the warp (modulo 32), and the bits of all lanes. All 32 lanes must call them.
template <class Number>
static inline Number from_lane(Number value, unsigned lane) {
  return __shfl_sync(~0u, value, lane);
}
static inline unsigned ballot(bool bit) { return __ballot_sync(~0u, bit); }

// Only integers, so that the order of the threads reaches no result.
static inline void atomic_or(std::uint32_t* word, std::uint32_t bits) { atomicOr(word, bits); }
static inline void atomic_add(std::uint32_t* word, std::uint32_t number) { atomicAdd(word, number); }

static inline unsigned count_bits(std::uint32_t word) { return __popc(word); }
static inline unsigned leading_zeros(std::uint32_t word) { return __clz(word); }
static inline double square_root(double v) { return sqrt(v); }

}  // namespace device
}  // namespace gq
#else
#include "serial.hpp"
#endif

namespace gq {
namespace device {

// A number that the compiler takes for a new one: what follows from it is found again where it is needed, in a loop
// too, and not kept in registers.
static inline void forget(std::uint32_t& number) { asm volatile("" : "+r"(number)); }

constexpr unsigned kWarp = 32;
static inline unsigned lane_index() { return thread_index() % kWarp; }

static inline unsigned lowest_bit(std::uint32_t word) { return count_bits((word & (0u - word)) - 1); }

// What a kernel found wrong, or'ed into a word of the device.
constexpr std::uint32_t kNotFinite = 1, kMalformed = 2;

static inline void report(bool bad, std::uint32_t flag, std::uint32_t* status) {
  if (bad) atomic_or(status, flag);
}

}  // namespace device
}  // namespace gq
