// What ranks exchange in a call beside the messages of lanes: small arrays in rounds of messages, or MPI's own sum.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "gq/runtime/transport.hpp"

namespace gq::runtime {

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Begins. A code of the transport's, or 0, as what follows.
  virtual int start(Transport& transport, int tag) = 0;
  virtual int completed(Transport& transport, const Ticket& ticket, std::size_t nbytes) = 0;
  virtual bool done() const = 0;

  // Is what was found what a call that goes on needs? False: it must be looked at.
  virtual bool as_expected() const { return true; }

  // Bytes of the longest message.
  virtual std::size_t longest() const { return 0; }

  std::uint64_t messages = 0, bytes_sent = 0, bytes_received = 0;
};

// A small exchange (gqallreduce/transport/exchange.py): in each of ceil(log2 P) rounds a message to one rank, and one
// from another. The same bytes, which have no headers, but not cut into parts.
class Rounds final : public Exchange {
 public:
  enum class Kind : int { kLargestWords, kLargestNumbers, kGather };  // uint64, float64, bytes

  // values: this rank's, of so many bytes, which become the largest of all ranks; of kGather a row for each rank, the
  // first one this rank's, of which row i becomes that of rank - i.
  Rounds(Kind kind, int rank, int size, std::uint8_t* values, std::size_t nbytes);

  int start(Transport& transport, int tag) override;
  int completed(Transport& transport, const Ticket& ticket, std::size_t nbytes) override;
  bool done() const override { return step_ >= size_ && sends_under_way_ == 0; }
  // kGather: is each row the header of this rank but for the rank, and tells of no flaw? Other kinds: always true.
  bool as_expected() const override { return kind_ != Kind::kGather || headers_alike(); }
  std::size_t longest() const override;

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

// The sum of a vector over all ranks by MPI, in place, in parts that follow each other.
class MpiSum final : public Exchange {
 public:
  // count numbers of so many bytes each, which MPI calls `type`; a part has `most` of them.
  MpiSum(std::uint8_t* values, std::size_t count, std::size_t itemsize, Handle type, std::size_t most)
      : values_(values), left_(count), itemsize_(itemsize), type_(type), most_(most) {}

  int start(Transport& transport, int tag) override;
  int completed(Transport& transport, const Ticket& ticket, std::size_t nbytes) override;
  bool done() const override { return !under_way_ && left_ == 0; }

 private:
  int post_part(Transport& transport);

  std::uint8_t* values_;
  std::size_t left_, itemsize_;
  Handle type_;
  std::size_t most_;
  bool under_way_ = false;
};

}  // namespace gq::runtime
