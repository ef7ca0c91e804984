#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "gq/runtime/progress_thread.hpp"

namespace gq::runtime {

namespace {

// While nothing can be done, a look for messages every so often: it takes about a hundredth of a core, and the link has
// not sent more meanwhile than its buffers hold.
constexpr auto kPause = std::chrono::microseconds(40);
// To wake the thread takes a core for some microseconds, from another rank where all cores work. So a caller that was
// away for less than this the last time, as one that starts call after call, does not wake it: it looks by itself, now
// and then, and sleeps only when it has found nothing to do several times.
constexpr auto kShort = std::chrono::microseconds(100);
constexpr auto kLook = std::chrono::milliseconds(1);
constexpr int kLooks = 5;
constexpr unsigned long kTimerSlack = 1000;  // nanoseconds, by which a pause may be longer

}  // namespace

bool ProgressThread::is_elsewhere() const { return started_by_ != 0 && started_by_ != getpid(); }

void ProgressThread::end(ProgressThread* thread) {
  if (!thread->is_elsewhere()) delete thread;
}

ProgressThread::~ProgressThread() {
  {
    wanted_ = true;
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ProgressThread::hand_over() {
  if (!engine_.busy() || is_elsewhere()) return;
  if (started_by_ == 0) {
    try {
      thread_ = std::thread(&ProgressThread::serve, this);
    } catch (const std::exception&) {  // std::system_error, std::bad_alloc
      return;
    }
    started_by_ = getpid();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    handed_over_ = true;
    left_at_ = std::chrono::steady_clock::now();
    if (away_ < kShort && !sleeps_) return;
    sleeps_ = false;
  }
  changed_.notify_one();
}

bool ProgressThread::take_back() {
  if (started_by_ == 0 || is_elsewhere()) return false;
  wanted_ = true;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (handed_over_) away_ = std::chrono::steady_clock::now() - left_at_;
  handed_over_ = wanted_ = false;
  return std::exchange(received_, false);
}

void ProgressThread::serve() {
  prctl(PR_SET_TIMERSLACK, kTimerSlack);
  std::unique_lock<std::mutex> lock(mutex_);
  for (int looks = kLooks; !ends_;) {
    if (wanted_ || !handed_over_ || !engine_.busy() || engine_.event) {
      if (looks > 0) {
        --looks;
        changed_.wait_for(lock, kLook);
      } else {
        sleeps_ = true;
        changed_.wait(lock, [this] { return !sleeps_ || ends_; });
        looks = kLooks;
      }
      continue;
    }
    looks = kLooks;
    Engine::Turn turn;
    try {
      turn = engine_.work();
    } catch (const std::bad_alloc&) {
      engine_.event = {};
      engine_.event.kind = Kind::kOutOfMemory;
    }
    received_ |= turn.received;
    if (wanted_ || turn.worked || turn.completed) continue;
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

}  // namespace gq::runtime
