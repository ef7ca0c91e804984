// What the thread sanitizer is told of a serial grid: each thread of a block is one of its threads too, all that orders
// them are barriers, and neighbouring blocks are not ordered at all. So it sees what threads of a block do without a
// barrier between them, and what blocks do to each other, whatever order the grid walks in. Without it nothing is told.
#pragma once

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>

#include <thread>

// Of code that is the grid's own, not a kernel's.
#define GQ_UNSEEN __attribute__((no_sanitize("thread")))
// A block's own memory: blocks that are told apart run on different threads of the system.
#define GQ_OF_BLOCK static thread_local

namespace gq {
namespace device {
namespace races {

// As many blocks are told apart; all others are taken for continuations of one of these.
constexpr unsigned kApart = 4;

using Track = void*;
GQ_UNSEEN static inline Track new_track() { return __tsan_create_fiber(0); }
GQ_UNSEEN static inline Track this_track() { return __tsan_get_current_fiber(); }
GQ_UNSEEN static inline void follow(Track track) { __tsan_switch_to_fiber(track, __tsan_switch_to_fiber_no_sync); }

// What was done before `tell` is before what is done after `hear` of the same meeting.
struct Meeting {
  std::uint64_t address;
};
GQ_UNSEEN static inline void tell(Meeting& meeting) { __tsan_release(&meeting); }
GQ_UNSEEN static inline void hear(Meeting& meeting) { __tsan_acquire(&meeting); }

static inline void run_apart(void (*work)(unsigned), unsigned apart) { std::thread(work, apart).join(); }

}  // namespace races
}  // namespace device
}  // namespace gq

#else
#define GQ_UNSEEN
#define GQ_OF_BLOCK static

namespace gq {
namespace device {
namespace races {

constexpr unsigned kApart = 1;

struct Track {};
static inline Track new_track() { return {}; }
static inline Track this_track() { return {}; }
static inline void follow(Track) {}

struct Meeting {};
static inline void tell(Meeting&) {}
static inline void hear(Meeting&) {}

static inline void run_apart(void (*work)(unsigned), unsigned apart) { work(apart); }

}  // namespace races
}  // namespace device
}  // namespace gq
#endif
