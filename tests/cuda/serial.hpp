// The names of block.hpp for g++: a grid that one thread of the CPU walks through, block by block.
//
// Each thread of a block is a fiber that runs until it meets others, at a barrier or a shuffle. When all of a warp, or
// all of a block, have come, they go on: a barrier is a boundary between phases. Threads that do not come to where the
// others wait are an error. Fibers run in ascending or in descending order: a kernel that lacks a barrier gives
// different results.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "gq/standard.hpp"

#define GQ_KERNEL extern "C" void
#define GQ_THREADS(count)
#define GQ_SHARED static
#define GQ_UNROLL

namespace gq {
namespace device {

constexpr unsigned kMostThreads = 1024;  // of a block

enum class State { ready, at_warp_barrier, at_block_barrier, finished };

// Where something stopped: a fiber, which is made once and then runs thread after thread, or the loop over them.
struct Place {
  ucontext_t context;
  jmp_buf jump;
  bool begun = false;
};

struct Fiber {
  Place place;
  State state;
  std::unique_ptr<char[]> stack;
};

// Jumps are faster by far (swapcontext makes system calls), but the address sanitizer does not follow them.
static inline void go(Place& from, Place& to) {
#ifdef __SANITIZE_ADDRESS__
  swapcontext(&from.context, &to.context);
#else
  if (_setjmp(from.jump)) return;
  if (to.begun) _longjmp(to.jump, 1);
  to.begun = true;
  setcontext(&to.context);
#endif
}

struct SerialGrid {
  unsigned blocks, threads, block, thread;
  bool descending;
  std::vector<Fiber> fibers;
  std::uint64_t exchanged[32][32];  // by warp and lane
  Place scheduler;
  void (*work)(void*);
  void* argument;
};

inline SerialGrid grid_now;

static inline unsigned thread_index() { return grid_now.thread; }
static inline unsigned threads_per_block() { return grid_now.threads; }
static inline unsigned block_index() { return grid_now.block; }
static inline unsigned blocks_per_grid() { return grid_now.blocks; }

static inline void wait_as(State state) {
  Fiber& self = grid_now.fibers[grid_now.thread];
  self.state = state;
  go(self.place, grid_now.scheduler);
}

static inline void block_barrier() { wait_as(State::at_block_barrier); }
static inline void warp_barrier() { wait_as(State::at_warp_barrier); }

template <class Number>
static inline Number from_lane(Number value, unsigned lane) {
  static_assert(sizeof value <= sizeof(std::uint64_t), "one word");
  std::uint64_t* const words = grid_now.exchanged[thread_index() / 32];
  std::memcpy(&words[thread_index() % 32], &value, sizeof value);
  warp_barrier();
  std::memcpy(&value, &words[lane % 32], sizeof value);
  warp_barrier();
  return value;
}

static inline unsigned ballot(bool bit) {
  std::uint64_t* const words = grid_now.exchanged[thread_index() / 32];
  words[thread_index() % 32] = bit;
  warp_barrier();
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned>(words[lane]) << lane;
  warp_barrier();
  return bits;
}

static inline void atomic_or(std::uint32_t* word, std::uint32_t bits) { *word |= bits; }
static inline void atomic_add(std::uint32_t* word, std::uint32_t number) { *word += number; }
static inline unsigned count_bits(std::uint32_t word) { return static_cast<unsigned>(__builtin_popcount(word)); }
static inline unsigned leading_zeros(std::uint32_t word) {
  return word ? static_cast<unsigned>(__builtin_clz(word)) : 32;
}
static inline double square_root(double v) { return std::sqrt(v); }

static inline void fiber_main() {
  for (;;) {
    grid_now.work(grid_now.argument);
    wait_as(State::finished);
  }
}

static inline void run_fiber(unsigned thread) {
  grid_now.thread = thread;
  grid_now.fibers[thread].state = State::ready;
  go(grid_now.scheduler, grid_now.fibers[thread].place);
}

// Are all threads of [begin, end) in this state?
static inline bool all_are(State state, unsigned begin, unsigned end) {
  for (unsigned thread = begin; thread < end; ++thread)
    if (grid_now.fibers[thread].state != state) return false;
  return true;
}

static inline void run_all(unsigned begin, unsigned end) {
  for (unsigned k = begin; k < end; ++k) run_fiber(grid_now.descending ? end - 1 - (k - begin) : k);
}

// Runs a warp until all of it have come to the block's barrier or to the end.
static inline void run_warp(unsigned begin, unsigned end) {
  do run_all(begin, end);
  while (all_are(State::at_warp_barrier, begin, end));
  if (all_are(State::finished, begin, end) || all_are(State::at_block_barrier, begin, end)) return;
  std::fprintf(stderr, "block %u: the threads from %u on do not meet\n", grid_now.block, begin);
  std::abort();
}

static inline void run_block() {
  const unsigned threads = grid_now.threads, warps = threads / 32;
  do
    for (unsigned k = 0; k < warps; ++k) {
      const unsigned begin = 32 * (grid_now.descending ? warps - 1 - k : k);
      if (!all_are(State::finished, begin, begin + 32)) run_warp(begin, begin + 32);
    }
  while (!all_are(State::finished, 0, threads));
}

static inline void make_fibers() {
  constexpr std::size_t kStack = 1 << 16;
  grid_now.scheduler.begun = true;
  if (!grid_now.fibers.empty()) return;
  grid_now.fibers.resize(kMostThreads);
  for (Fiber& fiber : grid_now.fibers) {
    fiber.stack = std::make_unique<char[]>(kStack);
    getcontext(&fiber.place.context);
    fiber.place.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.place.context.uc_stack.ss_size = kStack;
    makecontext(&fiber.place.context, fiber_main, 0);
  }
}

// Calls work(argument) in every thread of the grid; `threads` is a multiple of 32.
static inline void run_grid(unsigned blocks, unsigned threads, bool descending, void (*work)(void*), void* argument) {
  grid_now.blocks = blocks;
  grid_now.threads = threads;
  grid_now.descending = descending;
  grid_now.work = work;
  grid_now.argument = argument;
  make_fibers();
  for (unsigned k = 0; k < blocks; ++k) {
    grid_now.block = descending ? blocks - 1 - k : k;
    for (unsigned thread = 0; thread < threads; ++thread) grid_now.fibers[thread].state = State::ready;
    run_block();
  }
}

}  // namespace device
}  // namespace gq
