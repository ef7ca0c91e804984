// Memory that is used again, by size class: of messages, running values and scratch arrays, which a call gives back and
// the next one takes. Operations, with their lanes and lists, are kept for the next call by the Program (runtime.pxi).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace gq::runtime {

class Pool {
 public:
  // A block of at least `nbytes`, aligned to 64 bytes, which belongs to the pool again when it is destroyed.
  // std::bad_alloc if there is no memory.
  class Block {
   public:
    Block() = default;
    Block(Pool* pool, std::size_t size, std::uint8_t* data) : pool_(pool), size_(size), data_(data) {}
    Block(Block&& other) noexcept { swap(other); }
    Block& operator=(Block&& other) noexcept {
      Block moved(std::move(other));
      swap(moved);
      return *this;
    }
    ~Block() { clear(); }

    std::uint8_t* data() const { return data_; }
    float* floats() const { return reinterpret_cast<float*>(data_); }
    std::size_t size() const { return size_; }
    explicit operator bool() const { return data_ != nullptr; }
    void clear() {
      if (data_) pool_->give(data_, size_);
      data_ = nullptr;
      size_ = 0;
    }

   private:
    void swap(Block& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(size_, other.size_);
      std::swap(data_, other.data_);
    }

    Pool* pool_ = nullptr;
    std::size_t size_ = 0;
    std::uint8_t* data_ = nullptr;
  };

  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    for (auto& [size, blocks] : free_)
      for (std::uint8_t* block : blocks) ::operator delete(block, std::align_val_t{alignment_of(size)});
  }

  Block take(std::size_t nbytes) {
    const std::size_t size = class_of(nbytes);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::vector<std::uint8_t*>& blocks = free_[size];
      if (!blocks.empty()) {
        std::uint8_t* const data = blocks.back();
        blocks.pop_back();
        return Block(this, size, data);
      }
    }
    Block made(this, size, allocate(size));
    nbytes_ += size;
    return made;
  }

  // Of all blocks made: none is freed before the pool is.
  std::size_t nbytes() const { return nbytes_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  // Where an MPI copies from process to process the kernel looks up every page.
  static constexpr std::size_t kHugePage = std::size_t(2) << 20;

  static std::size_t alignment_of(std::size_t size) { return size >= kHugePage ? kHugePage : kAlignment; }

  static std::uint8_t* allocate(std::size_t size) {
    const std::size_t alignment = alignment_of(size);
    auto* const made = static_cast<std::uint8_t*>(::operator new(size, std::align_val_t{alignment}));
#ifdef MADV_HUGEPAGE
    if (alignment == kHugePage) madvise(made, size / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
    return made;
  }

  // Steps of an eighth of a power of two, and at least of a cache line: on 1000 ranks a lane has as many short
  // messages.
  static std::size_t class_of(std::size_t nbytes) {
    if (nbytes <= 8 * kAlignment) return std::max<std::size_t>(1, (nbytes + kAlignment - 1) / kAlignment) * kAlignment;
    const std::size_t step = std::size_t(1) << (60 - __builtin_clzll(nbytes - 1));
    return (nbytes + step - 1) / step * step;
  }

  void give(std::uint8_t* data, std::size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_[size].push_back(data);
  }

  std::mutex mutex_;
  std::atomic<std::size_t> nbytes_{0};
  std::map<std::size_t, std::vector<std::uint8_t*>> free_;
};

}  // namespace gq::runtime
