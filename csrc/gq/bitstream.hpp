// A stream of bits in bytes: the first bit is the highest one of the first byte, and the last byte is filled up with
// zeros.
#pragma once
#include "gq/standard.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// So many bytes behind a stream are written by a writer, and read by a reader.
constexpr std::size_t kStreamSlack = 8;

class BitWriter {
 public:
  // Between two calls of `flush` as many bits may be put; what they are is the low `length` bits of `pattern`.
  static constexpr int kMost = 56;

  explicit BitWriter(std::uint8_t* out) : out_(out) {}

  void put(std::uint64_t pattern, int length) {
    held_ = held_ << length | pattern;
    count_ += length;
  }

  void flush() {
    store(out_, __builtin_bswap64(held_ << 1 << (63 - count_)));
    out_ += count_ >> 3;
    count_ &= 7;
  }

  // The end of the stream.
  std::uint8_t* finish() {
    flush();
    return out_ + (count_ > 0);
  }

 private:
  std::uint8_t* out_;
  std::uint64_t held_ = 0;
  int count_ = 0;
};

// Reads from [in, in + nbytes); behind the end it yields whatever is there.
class BitReader {
 public:
  static constexpr int kLeast = 57;  // bits there are after `refill`

  BitReader(const std::uint8_t* in, std::size_t nbytes) : in_(in), nbytes_(nbytes) {}

  void refill() {
    const std::size_t at = place_ / 8 < nbytes_ ? place_ / 8 : nbytes_;
    word_ = __builtin_bswap64(load<std::uint64_t>(in_ + at)) << (place_ % 8);
  }

  // The next bits, 1 <= length <= 32.
  std::uint32_t peek(int length) const { return static_cast<std::uint32_t>(word_ >> (64 - length)); }

  void skip(int length) {
    word_ <<= length;
    place_ += length;
  }

  std::uint32_t take(int length) {
    const std::uint32_t bits = peek(length);
    skip(length);
    return bits;
  }

  bool past_end() const { return place_ > 8 * nbytes_; }
  // Has all been read but what fills up the last byte?
  bool at_end() const { return (place_ + 7) / 8 == nbytes_; }
  std::size_t bytes_read() const { return (place_ + 7) / 8; }

 private:
  const std::uint8_t* in_;
  std::size_t nbytes_;
  std::uint64_t word_ = 0;
  std::uint64_t place_ = 0;  // bits
};

}  // namespace GQ_NAMESPACE
}  // namespace gq
