#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#ifdef __linux__
#include <sys/uio.h>
#include <unistd.h>
#endif

#include "gq/runtime/exposure.hpp"
#include "gq/runtime/fault.hpp"

namespace gq::runtime {

namespace {

using Place = std::atomic<std::uint64_t>;

// Where marks are. Never freed: a late reader finds there that a mark is withdrawn.
class Places {
 public:
  Place* take(std::uint64_t& mark) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      blocks_.push_back(std::make_unique<Place[]>(kTogether));
      for (std::size_t at = 0; at < kTogether; ++at) free_.push_back(&blocks_.back()[at]);
    }
    Place* const found = free_.back();
    free_.pop_back();
    next_ += next_ == UINT64_MAX ? 2 : 1;  // never 0
    mark = next_;
    return found;
  }

  void give(Place* place) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(place);
  }

 private:
  static constexpr std::size_t kTogether = 256;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Place[]>> blocks_;
  std::vector<Place*> free_;
  // Not the numbers of an earlier process with the same addresses.
  std::uint64_t next_ = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) << 16;
};

Places& places() {
  static Places* const all = new Places;
  return *all;
}

}  // namespace

void Exposure::write(std::uint8_t* buffer) const {
  static_assert(sizeof(Exposure) == kSize);
  std::memcpy(buffer, this, kSize);
}

bool Exposure::read(const std::uint8_t* buffer, std::size_t nbytes) {
  if (nbytes != kSize) return false;
  std::memcpy(this, buffer, kSize);
  return mark != 0 && flags <= (kAnswered | kOwn | kSum);
}

Mark::Mark() : at_(places().take(value_)) { at_->store(value_); }

void Mark::withdraw() {
  if (value_ == 0) return;
  at_->store(0);
  value_ = 0;
  places().give(at_);
}

#ifdef __linux__

namespace {

iovec memory(std::uint64_t address, std::size_t nbytes) { return {reinterpret_cast<void*>(address), nbytes}; }

}  // namespace

bool fetch(int process, const Exposure& exposure, std::size_t from, void* to, std::size_t nbytes) {
  constexpr std::size_t kAtOnce = std::size_t(1) << 30;  // Linux reads less than 2 GiB in one call
  for (std::size_t at = 0, size; at < nbytes; at += size) {
    size = std::min(kAtOnce, nbytes - at);
    std::uint64_t mark = 0;  // read after the values
    const iovec here[] = {{static_cast<std::uint8_t*>(to) + at, size}, {&mark, sizeof mark}};
    const iovec there[] = {memory(exposure.address + from + at, size), memory(exposure.mark_address, sizeof mark)};
    const ssize_t read = process_vm_readv(process, here, 2, there, 2, 0);
    if (read != static_cast<ssize_t>(size + sizeof mark) || mark != exposure.mark) return false;
  }
  return true;
}

bool read_memory(int process, std::uint64_t address, void* to, std::size_t nbytes) {
  const iovec here = {to, nbytes}, there = memory(address, nbytes);
  return process_vm_readv(process, &here, 1, &there, 1, 0) == static_cast<ssize_t>(nbytes);
}

bool readable(const void* data, std::size_t nbytes) {
  if (memory_unreadable.load(std::memory_order_relaxed)) return false;
  std::uint8_t found;
  const auto first = reinterpret_cast<std::uint64_t>(data);
  return nbytes == 0 ||
         (read_memory(getpid(), first, &found, 1) && read_memory(getpid(), first + nbytes - 1, &found, 1));
}

#else

bool fetch(int, const Exposure&, std::size_t, void*, std::size_t) { return false; }
bool read_memory(int, std::uint64_t, void*, std::size_t) { return false; }
bool readable(const void*, std::size_t) { return false; }

#endif

}  // namespace gq::runtime
