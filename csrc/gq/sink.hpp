// Streaming stores, for an array that is large and not read again soon.
//
// An ordinary store first reads the cache line that it overwrites, so that a written array loads the memory bus twice,
// which the processes of a machine share. A streaming store does not, but wants whole cache lines. What is stored is
// the same. The scalar level has ordinary stores only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/vectors.hpp"

namespace gq {
namespace GQ_NAMESPACE {

static inline bool can_stream(const float* target) {
  return GQ_LEVEL > 0 && reinterpret_cast<std::uintptr_t>(target) % sizeof(float) == 0;
}

constexpr std::size_t kLine = 64 / sizeof(float);  // floats of a cache line

// Floats from the beginning of its line to `target`.
static inline std::size_t floats_into_line(const float* target) {
  return reinterpret_cast<std::uintptr_t>(target) % 64 / sizeof(float);
}

// Floats from `target` to where the next line begins; 0 if it begins one.
static inline std::size_t floats_to_next_line(const float* target) {
  return -reinterpret_cast<std::uintptr_t>(target) % 64 / sizeof(float);
}

#if GQ_LEVEL == 2
static inline void stream(float* target, Floats v) { _mm512_stream_ps(target, (__m512)v); }
#elif GQ_LEVEL == 1
static inline void stream(float* target, Floats v) { _mm256_stream_ps(target, (__m256)v); }
#endif

// To be called before others are told that the array is written.
static inline void finish_streaming() {
#if GQ_LEVEL >= 1
  _mm_sfence();
#endif
}

// target = source: whole vectors by streaming stores, what is left at both ends by ordinary ones.
static inline void stream_all(float* target, const float* source, std::size_t n) {
  if (n == 0) return;
  const std::size_t before = floats_to_next_line(target);
  std::size_t i = before < n ? before : n;
  std::memcpy(target, source, i * sizeof(float));
#if GQ_LEVEL >= 1
  for (; i + kWidth <= n; i += kWidth) stream(target + i, load<Floats>(source + i));
#endif
  std::memcpy(target + i, source + i, (n - i) * sizeof(float));
}

// Hands out room for the blocks of an array, which follow each other without gaps: in the array itself or, if it is
// streamed, in a tile in the first cache. From there whole lines are streamed; what is left of a line waits for the
// next block. An ordinary store to it would wait until the line has been read, and all stores after it too.
class Sink {
 public:
  // Most elements at once. The CPU can store them while the next block is computed; with longer ones it waits.
  static constexpr std::size_t kBlock = 512;

  Sink(float* array, bool streaming) : array_(array), streaming_(streaming && can_stream(array)) {}
  ~Sink() {
    if (!streaming_) return;
    flush(end_);
    finish_streaming();
  }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  // Room for elements begin ... begin + n - 1, all of which are to be written before the next call.
  float* at(std::size_t begin, std::size_t n) {
    if (!streaming_) return array_ + begin;
    if (begin + n > first_ + kBlock) flush_lines();
    end_ = begin + n;
    return tile_ + (begin - first_);
  }

 private:
  void flush(std::size_t end) {
    stream_all(array_ + first_, tile_, end - first_);
    first_ = end;
  }

  void flush_lines() {
    const std::size_t before = first_, left = floats_into_line(array_ + end_);
    if (left >= end_ - first_) return;
    flush(end_ - left);
    std::memmove(tile_, tile_ + (first_ - before), left * sizeof(float));
  }

  float* array_;
  bool streaming_;
  std::size_t first_ = 0, end_ = 0;  // the elements that the tile holds
  alignas(64) float tile_[kBlock + kLine];
};

}  // namespace GQ_NAMESPACE
}  // namespace gq
