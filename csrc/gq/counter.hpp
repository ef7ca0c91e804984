// Adds up what several threads count; the destructor adds the sum to *total.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gq {

class Counter {
 public:
  explicit Counter(std::uint64_t* total) : total_(total) {}
  ~Counter() { *total_ += sum_; }

  // Calls work(&count), adds the count, and returns what work returned.
  template <class Work>
  auto count_in(Work work) {
    std::size_t count = 0;
    const auto result = work(&count);
    sum_ += count;
    return result;
  }

 private:
  std::uint64_t* total_;
  std::atomic<std::uint64_t> sum_{0};
};

}  // namespace gq
