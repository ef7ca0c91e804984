// A small exchange of a call (gqallreduce/transport/exchange.py): in each of ceil(log2 P) rounds a message to one rank,
// and one from another. The same bytes, which have no headers, but not cut into parts.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "gq/runtime/transport.hpp"

namespace gq::runtime {

class Exchange {
 public:
  enum class Kind : int { kLargestWords, kLargestNumbers, kGather };  // uint64, float64, bytes

  // values: this rank's, of so many bytes, which become the largest of all ranks; of kGather a row for each rank, the
  // first one this rank's, of which row i becomes that of rank - i.
  Exchange(Kind kind, int rank, int size, std::uint8_t* values, std::size_t nbytes);

  // Begins. A code of the transport's, or 0, as what follows.
  int start(Transport& transport, int tag);
  int completed(Transport& transport, const Ticket& ticket, std::size_t nbytes);
  bool done() const { return step_ >= size_ && sends_under_way_ == 0; }

  // kGather: is each row the header of this rank but for the rank, and tells of no flaw? Other kinds: always true.
  bool as_expected() const { return kind_ != Kind::kGather || headers_alike(); }

  // Bytes of the longest message.
  std::size_t longest() const;

  std::uint64_t messages = 0, bytes_sent = 0, bytes_received = 0;

 private:
  // Of the round under way: how many bytes are sent.
  std::size_t sent_now() const { return nbytes_ * (kind_ == Kind::kGather ? std::min(step_, size_ - step_) : 1); }
  int post_round(Transport& transport);
  void take();
  bool headers_alike() const;

  Kind kind_;
  int rank_, size_, tag_ = 0, step_ = 1;
  std::uint8_t* values_;
  std::size_t nbytes_;
  std::vector<std::uint8_t> came_;
  std::vector<std::vector<std::uint8_t>> sent_;  // of each round
  int sends_under_way_ = 0;
};

}  // namespace gq::runtime
