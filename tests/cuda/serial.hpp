// The names of block.hpp for g++: a grid that one thread of the CPU walks through, block by block.
//
// Each thread of a block is a fiber that runs until it meets others, at a barrier or a shuffle. When all of a warp, or
// all of a block, have come, they go on: a barrier is a boundary between phases. Threads that do not come to where the
// others wait are an error. Fibers run in ascending or in descending order: a kernel that lacks a barrier gives
// different results. What that overlooks the thread sanitizer sees, if it is told who has waited for whom (races.hpp).
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "gq/standard.hpp"
#include "races.hpp"

#define GQ_KERNEL extern "C" void
#define GQ_THREADS(...)
#define GQ_SHARED GQ_OF_BLOCK
#define GQ_UNROLL

namespace gq {
namespace device {

constexpr unsigned kMostThreads = 1024;  // of a block

enum class State { ready, at_warp_barrier, at_block_barrier, finished };

// Where something stopped: a fiber, which is made once and then runs thread after thread, or the loop over them.
struct Place {
  ucontext_t context;
  void* jump[5];
  bool begun = false;
  races::Track track;
};

struct Fiber {
  Place place;
  State state;
  std::unique_ptr<char[]> stack;
  bool second_warp_barrier, second_block_barrier;  // the next one; two take turns
};

// Meetings of the threads of one block. At a barrier all tell before any hears; the next one is another meeting, at
// which no thread tells before all have heard of this one.
struct Meetings {
  races::Meeting begin[2], block[2], warp[kMostThreads / 32][2];
};

struct SerialGrid {
  unsigned blocks, threads, block, thread;
  bool descending;
  Fiber* fibers;  // of the block
  Meetings* meetings;
  races::Meeting *begin, *next_begin;  // the next one is that of the next block these fibers run
  std::uint64_t exchanged[32][32];     // by warp and lane
  Place scheduler;
  void (*work)(void*);
  void* argument;
  Fiber all_fibers[races::kApart][kMostThreads];
  Meetings all_meetings[races::kApart];
  races::Meeting end;
};

inline SerialGrid grid_now;

GQ_UNSEEN static inline unsigned thread_index() { return grid_now.thread; }
GQ_UNSEEN static inline unsigned threads_per_block() { return grid_now.threads; }
GQ_UNSEEN static inline unsigned block_index() { return grid_now.block; }
GQ_UNSEEN static inline unsigned blocks_per_grid() { return grid_now.blocks; }

// Jumps are faster by far (swapcontext makes system calls), but the address sanitizer does not follow them. The thread
// sanitizer follows those of the library, which it must not: these are the compiler's.
GQ_UNSEEN static inline void go(Place& from, Place& to) {
  races::follow(to.track);
#ifdef __SANITIZE_ADDRESS__
  swapcontext(&from.context, &to.context);
#else
  if (__builtin_setjmp(from.jump)) return;
  if (to.begun) __builtin_longjmp(to.jump, 1);
  to.begun = true;
  setcontext(&to.context);
#endif
}

GQ_UNSEEN static inline void wait_as(State state) {
  Fiber& self = grid_now.fibers[grid_now.thread];
  self.state = state;
  go(self.place, grid_now.scheduler);
}

GQ_UNSEEN static inline void meet(State state, races::Meeting (&meetings)[2], bool& second) {
  races::Meeting& meeting = meetings[second];
  second = !second;
  races::tell(meeting);
  wait_as(state);
  races::hear(meeting);
}

GQ_UNSEEN static inline void block_barrier() {
  Fiber& self = grid_now.fibers[grid_now.thread];
  meet(State::at_block_barrier, grid_now.meetings->block, self.second_block_barrier);
}

GQ_UNSEEN static inline void warp_barrier() {
  Fiber& self = grid_now.fibers[grid_now.thread];
  meet(State::at_warp_barrier, grid_now.meetings->warp[grid_now.thread / 32], self.second_warp_barrier);
}

// What lanes exchange orders nothing else that they do.
template <class Number>
GQ_UNSEEN static inline Number from_lane(Number value, unsigned lane) {
  static_assert(sizeof value <= sizeof(std::uint64_t), "one word");
  std::uint64_t* const words = grid_now.exchanged[grid_now.thread / 32];
  std::memcpy(&words[grid_now.thread % 32], &value, sizeof value);
  wait_as(State::at_warp_barrier);
  std::memcpy(&value, &words[lane % 32], sizeof value);
  wait_as(State::at_warp_barrier);
  return value;
}

GQ_UNSEEN static inline unsigned ballot(bool bit) {
  std::uint64_t* const words = grid_now.exchanged[grid_now.thread / 32];
  words[grid_now.thread % 32] = bit;
  wait_as(State::at_warp_barrier);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned>(words[lane]) << lane;
  wait_as(State::at_warp_barrier);
  return bits;
}

static inline void atomic_or(std::uint32_t* word, std::uint32_t bits) {
  __atomic_fetch_or(word, bits, __ATOMIC_RELAXED);
}
static inline void atomic_add(std::uint32_t* word, std::uint32_t number) {
  __atomic_fetch_add(word, number, __ATOMIC_RELAXED);
}
static inline unsigned count_bits(std::uint32_t word) { return static_cast<unsigned>(__builtin_popcount(word)); }
static inline unsigned leading_zeros(std::uint32_t word) {
  return word ? static_cast<unsigned>(__builtin_clz(word)) : 32;
}
static inline double square_root(double v) { return std::sqrt(v); }

GQ_UNSEEN static inline void fiber_main() {
  for (;;) {
    races::hear(*grid_now.begin);
    grid_now.work(grid_now.argument);
    races::tell(*grid_now.next_begin);
    races::tell(grid_now.end);
    wait_as(State::finished);
  }
}

GQ_UNSEEN static inline void make_fiber(Fiber& fiber) {
  constexpr std::size_t kStack = 1 << 16;
  fiber.stack = std::make_unique<char[]>(kStack);
  fiber.place.track = races::new_track();
  getcontext(&fiber.place.context);
  fiber.place.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.place.context.uc_stack.ss_size = kStack;
  makecontext(&fiber.place.context, fiber_main, 0);
}

GQ_UNSEEN static inline void run_fiber(unsigned thread) {
  grid_now.thread = thread;
  grid_now.fibers[thread].state = State::ready;
  go(grid_now.scheduler, grid_now.fibers[thread].place);
}

// Are all threads of [begin, end) in this state?
GQ_UNSEEN static inline bool all_are(State state, unsigned begin, unsigned end) {
  for (unsigned thread = begin; thread < end; ++thread)
    if (grid_now.fibers[thread].state != state) return false;
  return true;
}

GQ_UNSEEN static inline void run_all(unsigned begin, unsigned end) {
  for (unsigned k = begin; k < end; ++k) run_fiber(grid_now.descending ? end - 1 - (k - begin) : k);
}

// Runs a warp until all of it have come to the block's barrier or to the end.
GQ_UNSEEN static inline void run_warp(unsigned begin, unsigned end) {
  do run_all(begin, end);
  while (all_are(State::at_warp_barrier, begin, end));
  if (all_are(State::finished, begin, end) || all_are(State::at_block_barrier, begin, end)) return;
  std::fprintf(stderr, "block %u: the threads from %u on do not meet\n", grid_now.block, begin);
  std::abort();
}

GQ_UNSEEN static inline void run_block() {
  const unsigned threads = grid_now.threads, warps = threads / 32;
  grid_now.scheduler.begun = true;
  grid_now.scheduler.track = races::this_track();
  races::tell(*grid_now.begin);
  do
    for (unsigned k = 0; k < warps; ++k) {
      const unsigned begin = 32 * (grid_now.descending ? warps - 1 - k : k);
      if (!all_are(State::finished, begin, begin + 32)) run_warp(begin, begin + 32);
    }
  while (!all_are(State::finished, 0, threads));
}

GQ_UNSEEN static inline void prepare_block(unsigned block, unsigned apart) {
  grid_now.block = block;
  grid_now.fibers = grid_now.all_fibers[apart];
  grid_now.meetings = &grid_now.all_meetings[apart];
  grid_now.begin = &grid_now.meetings->begin[block / races::kApart % 2];
  grid_now.next_begin = &grid_now.meetings->begin[1 - block / races::kApart % 2];
  for (unsigned thread = 0; thread < grid_now.threads; ++thread) {
    Fiber& fiber = grid_now.fibers[thread];
    if (!fiber.stack) make_fiber(fiber);
    fiber.state = State::ready;
    fiber.second_warp_barrier = fiber.second_block_barrier = false;
  }
}

// Every kApart-th block, from the one of this number on.
GQ_UNSEEN static inline void run_blocks(unsigned apart) {
  for (unsigned k = apart; k < grid_now.blocks; k += races::kApart) {
    prepare_block(grid_now.descending ? grid_now.blocks - 1 - k : k, apart);
    run_block();
  }
}

// Calls work(argument) in every thread of the grid; `threads` is a multiple of 32.
GQ_UNSEEN static inline void run_grid(unsigned blocks, unsigned threads, bool descending, void (*work)(void*),
                                      void* argument) {
  grid_now.blocks = blocks;
  grid_now.threads = threads;
  grid_now.descending = descending;
  grid_now.work = work;
  grid_now.argument = argument;
  for (unsigned apart = 0; apart < races::kApart; ++apart) races::run_apart(run_blocks, apart);
  races::hear(grid_now.end);
  grid_now.argument = nullptr;
}

}  // namespace device
}  // namespace gq
