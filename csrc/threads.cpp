// A few threads that sleep until a kernel call is worth sharing. OpenMP was tried first: its threads spin between
// calls, which on busy cores made a call a hundred times slower.
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "gq/door.hpp"

namespace gq {

namespace {

int thread_count = 1;

class Pool {
 public:
  // Runs call(context, 1) ... on the sleepers, and here call(context, 0) and those for which there is no sleeper.
  void run(int parts, void (*call)(void*, int), void* context) {
    int shared;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      shared = std::min(parts, 1 + grown_to(parts - 1));
      call_ = call;
      context_ = context;
      parts_ = shared;
      left_ = shared - 1;
      ++generation_;
    }
    begin_.notify_all();
    call(context, 0);
    for (int number = shared; number < parts; ++number) call(context, number);
    std::unique_lock<std::mutex> lock(mutex_);
    end_.wait(lock, [this] { return left_ == 0; });
  }

  std::mutex in_use;

 private:
  // How many sleepers there are once those missing are started, as far as the limits of the process and the machine
  // allow; the next call tries again.
  int grown_to(int wanted) {
    try {
      for (; sleepers_ < wanted; ++sleepers_) std::thread(&Pool::serve, this, sleepers_ + 1, generation_).detach();
    } catch (const std::exception&) {  // std::system_error, std::bad_alloc
    }
    return sleepers_;
  }

  void serve(int number, unsigned long seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      begin_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (number >= parts_) continue;
      lock.unlock();
      call_(context_, number);
      lock.lock();
      if (--left_ == 0) end_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  void (*call_)(void*, int) = nullptr;
  void* context_ = nullptr;
  int parts_ = 0, left_ = 0, sleepers_ = 0;
  unsigned long generation_ = 0;
};

Pool* pool = nullptr;  // never freed: its threads may outlive everything else

Pool& the_pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { pool = nullptr; });  // a child has no threads
  static_cast<void>(registered);
  if (!pool) pool = new Pool;
  return *pool;
}

}  // namespace

int threads() { return thread_count; }

void set_threads(int n) { thread_count = n < 1 ? 1 : n; }

void run_on_threads(int count, void (*call)(void*, int), void* context) {
  if (count > 1) {
    static std::mutex creating;
    Pool* shared;
    {
      const std::lock_guard<std::mutex> lock(creating);
      shared = &the_pool();
    }
    const std::unique_lock<std::mutex> lock(shared->in_use, std::try_to_lock);
    if (lock.owns_lock()) return shared->run(count, call, context);
  }
  for (int number = 0; number < count; ++number) call(context, number);
}

}  // namespace gq
