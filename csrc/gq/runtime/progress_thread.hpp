// A thread that advances an engine's operations while its caller does something else. Either the caller has the engine
// or this thread does, so the engine itself knows no threads.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "gq/runtime/engine.hpp"

namespace gq::runtime {

class ProgressThread {
 public:
  explicit ProgressThread(Engine& engine) : engine_(engine) {}
  ~ProgressThread();
  // Destroys it. After a fork, in the child, it is left behind: what the thread waits for cannot be destroyed there.
  static void end(ProgressThread* thread);
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // The thread has the engine from now on; it is started when there is something to do for the first time. Where no
  // thread can be started, the caller advances the engine alone, as without one.
  void hand_over();
  // The caller has it again; waits for a kernel call that is under way. Has something come meanwhile?
  bool take_back();

 private:
  // After a fork the child has no thread, and must not wait for one.
  bool is_elsewhere() const;
  void serve();

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> wanted_{false};  // by the caller
  bool handed_over_ = false, sleeps_ = false, ends_ = false, received_ = false;
  std::chrono::steady_clock::time_point left_at_;
  std::chrono::steady_clock::duration away_ = std::chrono::seconds(1);  // how long the caller was, the last time
  pid_t started_by_ = 0;
  std::thread thread_;
};

}  // namespace gq::runtime
