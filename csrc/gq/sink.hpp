// Where a kernel writes an array that is not read again soon.
//
// An ordinary store first reads the cache line that it overwrites, so a written array loads the memory bus twice, which
// several processes of a machine share. A streaming store does not, but wants whole cache lines. So kernels write block
// by block into a tile in the first cache, which is then streamed out; the values are the same.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gq {
namespace GQ_NAMESPACE {

constexpr std::size_t kLine = 64 / sizeof(float);  // floats in a cache line

static inline void stream_line(const float* source, float* target) {
#if GQ_LEVEL == 2
  _mm512_stream_ps(target, _mm512_loadu_ps(source));
#else
  for (std::size_t i = 0; i < kLine; i += 4) _mm_stream_ps(target + i, _mm_loadu_ps(source + i));
#endif
}

// target = source: whole cache lines by streaming stores, what is left at both ends by ordinary ones.
static inline void stream(const float* source, float* target, std::size_t n) {
  const std::size_t nbytes_before = -reinterpret_cast<std::uintptr_t>(target) % 64;
  std::size_t i = nbytes_before / sizeof(float) < n ? nbytes_before / sizeof(float) : n;
  if (nbytes_before % sizeof(float) != 0) i = n;  // no float begins a line
  std::memcpy(target, source, i * sizeof(float));
  for (; i + kLine <= n; i += kLine) stream_line(source + i, target + i);
  std::memcpy(target + i, source + i, (n - i) * sizeof(float));
}

// Hands out room for the blocks of an array, which follow each other without gaps: in the array itself or, if it is
// streamed, in the tile.
class Sink {
 public:
  static constexpr std::size_t kBlock = 2048;  // most elements at once

  Sink(float* array, bool streaming) : array_(array), streaming_(streaming && GQ_LEVEL > 0) {}
  ~Sink() {
    if (!streaming_) return;
    flush();
    _mm_sfence();  // before the caller tells anybody that the array is written
  }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  // Room for elements begin ... begin + n - 1, all of which are to be written before the next call.
  float* at(std::size_t begin, std::size_t n) {
    if (!streaming_) return array_ + begin;
    if (begin + n > first_ + kBlock) flush();
    end_ = begin + n;
    return tile_ + (begin - first_);
  }

 private:
  void flush() {
    stream(tile_, array_ + first_, end_ - first_);
    first_ = end_;
  }

  float* array_;
  bool streaming_;
  std::size_t first_ = 0, end_ = 0;  // the elements that the tile holds
  alignas(64) float tile_[kBlock];
};

}  // namespace GQ_NAMESPACE
}  // namespace gq
