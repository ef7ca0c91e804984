// What the targets of libFuzzer in this folder share: an input that is read byte by byte, and what must hold.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

// Ends the process, so that the fuzzer keeps the input.
#define REQUIRE(condition)                                                           \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)

// Takes numbers from the front of an input; zeros once it is used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  std::uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::size_t number(std::size_t least, std::size_t most) { return least + byte() % (most - least + 1); }
  bool flag() { return byte() & 1; }

  // A copy, so that address sanitizer sees what is read before or behind it.
  struct Bytes {
    std::unique_ptr<std::uint8_t[]> data;
    std::size_t size;
  };
  Bytes bytes(std::size_t most) {
    const std::size_t size = std::min(most, left_);
    Bytes taken{std::make_unique<std::uint8_t[]>(size), size};
    std::copy_n(data_, size, taken.data.get());
    data_ += size;
    left_ -= size;
    return taken;
  }
  Bytes rest() { return bytes(left_); }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};
