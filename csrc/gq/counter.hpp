// A number to which threads add.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gq {

class Counter {
 public:
  explicit Counter(std::uint64_t* total) : total_(total) {}
  ~Counter() { *total_ += sum_; }

  // What work(&count) returns.
  template <class Work>
  auto around(Work work) {
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
