// Values that ranks of one host read where they lie, in each other's memory, in place of messages that carry them.
//
// No rank writes to the memory of another. What is exposed has a mark beside it, in memory of the same process, which
// is withdrawn before its owner may change the values: a reader that finds the mark after it has read has read them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gq::runtime {

// What follows the header of a frame whose values are exposed.
struct Exposure {
  std::uint64_t address, mark_address, mark;
  std::uint64_t flags;

  static constexpr std::size_t kSize = 32;
  static constexpr std::uint64_t kAnswered = 1;  // the owner waits to be told that they have been read
  static constexpr std::uint64_t kOwn = 2;       // own values of the author, not checked to be finite
  static constexpr std::uint64_t kSum = 4;       // values of a sum, not checked either

  bool unchecked() const { return flags & (kOwn | kSum); }
  void write(std::uint8_t* buffer) const;
  // False if there is none.
  bool read(const std::uint8_t* buffer, std::size_t nbytes);
};

// A number that no other exposure has, at an address that stays readable; withdrawn at the end of its life.
class Mark {
 public:
  Mark();
  ~Mark() { withdraw(); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  void withdraw();
  std::uint64_t value() const { return value_; }  // 0 once it is withdrawn
  const void* address() const { return at_; }

 private:
  std::atomic<std::uint64_t>* at_;
  std::uint64_t value_;
};

// Reads so many bytes of exposed values of a process, from a byte on; false if they are not exposed any more.
bool fetch(int process, const Exposure& exposure, std::size_t from, void* to, std::size_t nbytes);

// Reads memory of a process; false if it may not, or cannot.
bool read_memory(int process, std::uint64_t address, void* to, std::size_t nbytes);

// Can other processes read this memory, as far as its first and last byte tell? Pinned memory of a device cannot be.
bool readable(const void* data, std::size_t nbytes);

}  // namespace gq::runtime
