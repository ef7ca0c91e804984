// For tests: a process that stops at an instruction, as one that dies does for the others, or is killed there; and
// memory that other processes cannot read.
#pragma once
#include <atomic>
#include <csignal>

namespace gq::runtime {

// How many instructions are left until the process stops itself; 0 or less: it does not.
inline std::atomic<long> instructions_left{0};
// What it is stopped by.
inline std::atomic<int> stopping_signal{SIGSTOP};

void stop_process();

// Is any memory as if others could not read it?
inline std::atomic<bool> memory_unreadable{false};

inline void count_instruction() {
  if (instructions_left.load(std::memory_order_relaxed) > 0 && instructions_left.fetch_sub(1) == 1) stop_process();
}

}  // namespace gq::runtime
