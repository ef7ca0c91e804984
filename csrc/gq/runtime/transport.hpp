// What sends and receives the messages of one communicator: MPI (mpi.hpp), or memory of this process (loopback.hpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gq::runtime {

class Lane;
class Exchange;

using Handle = std::uint64_t;  // of MPI

constexpr int kAllPeers = -1;  // in a Ticket: a collective operation of MPI's

// Whose message, or part of one, a request is: a lane's or an exchange's.
struct Ticket {
  Lane* lane;
  Exchange* exchange;
  // Of a lane: the slot of what it receives, the number of its sending, or as a negative number the answer of a reader;
  // of an exchange: the round.
  int message;
  int peer;
  bool receives;
};

struct Completion {
  Ticket ticket;
  std::size_t nbytes;  // received
};

class Transport {
 public:
  virtual ~Transport() = default;

  // 0, or a code of the transport's.
  virtual int send(const std::uint8_t* data, std::size_t nbytes, int tag, const Ticket& ticket) = 0;
  virtual int receive(std::uint8_t* data, std::size_t nbytes, int tag, const Ticket& ticket) = 0;
  // Begins MPI's sum of so many numbers of a type over all ranks, in place; kNoSum where there is none.
  virtual int sum(std::uint8_t* values, std::size_t count, Handle type, const Ticket& ticket);
  static constexpr int kNoSum = -1;
  // What has completed is added to the list.
  virtual int poll(std::vector<Completion>& completed) = 0;

  // Does a poll that finds nothing lend the core to other processes?
  virtual bool yields() const { return false; }

  // The most bytes of one message to or from a peer; longer ones are sent in parts. The least of these.
  virtual std::size_t limit(int peer) const = 0;
  virtual std::size_t least_limit() const = 0;

  // The process of a peer whose memory this rank can read, 0 for none; and from how many bytes on values are exposed to
  // such peers rather than sent, 0 for never.
  virtual int process_of(int) const { return 0; }
  virtual std::size_t exposed_from() const { return 0; }

  // What is under way.
  virtual const std::vector<Ticket>& pending() const = 0;
};

}  // namespace gq::runtime
