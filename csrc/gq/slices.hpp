// A list that threads fill together, each its own slice of the room.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/door.hpp"

namespace gq {

// Where each thread put its entries of a shared list, and how many.
struct Slices {
  explicit Slices(int count) : count(count) {}

  std::size_t total() const {
    std::size_t sum = 0;
    for (int thread = 0; thread < count; ++thread) sum += size[thread];
    return sum;
  }

  // Where the room of a thread ends.
  std::size_t end(int thread, std::size_t capacity) const { return thread + 1 < count ? begin[thread + 1] : capacity; }

  bool fit(std::size_t capacity) const {
    for (int thread = 0; thread < count; ++thread)
      if (size[thread] > end(thread, capacity) - begin[thread]) return false;
    return true;
  }

  // Gives every thread exactly the room that its entries need.
  void line_up() {
    begin[0] = 0;
    for (int thread = 1; thread < count; ++thread) begin[thread] = begin[thread - 1] + size[thread - 1];
  }

  // Closes the gaps between the slices; returns the number of entries.
  std::size_t join(std::uint32_t* index, float* value) const {
    std::size_t end = size[0];
    for (int thread = 1; thread < count; ++thread) {
      if (begin[thread] != end && size[thread] > 0) {
        std::memmove(index + end, index + begin[thread], size[thread] * sizeof(std::uint32_t));
        std::memmove(value + end, value + begin[thread], size[thread] * sizeof(float));
      }
      end += size[thread];
    }
    return end;
  }

  int count;
  std::size_t begin[kMostThreads], size[kMostThreads];
};

}  // namespace gq
