// The progress engine of a communicator, without Python: advances all operations under way, in the order in which they
// were started. Its rules are those of gqallreduce/transport/progress.py, but a wait spins for 5 us only.
#pragma once
#include <vector>

#include "gq/runtime/event.hpp"
#include "gq/runtime/exchange.hpp"
#include "gq/runtime/lane.hpp"
#include "gq/runtime/transport.hpp"

namespace gq::runtime {

class Engine {
 public:
  // poll_every: seconds of arithmetic between two polls; 0 for a poll after every instruction.
  Engine(Transport& transport, double poll_every) : transport_(transport), poll_every_(poll_every) {}

  void start(Operation& operation);
  // An exchange that is not too long for one message; it begins at once.
  void start(Exchange& exchange, int tag);
  // Whatever is under way is forgotten; the transport may still have messages.
  void clear();
  // What it has exposed is not any more.
  void withdraw();

  bool busy() const { return under_way() > 0; }

  struct Turn {
    bool worked = false, completed = false, received = false;
    double ended = 0, polled = 0;  // when, and how long its poll took
  };
  // Lets lanes go on until a poll is due, and polls. Stops at an event.
  Turn work();
  // Until an operation or an exchange is done, there is an event, or so many seconds have passed; spins while nothing
  // can be done, and then yields the core, where the MPI has not in its poll. Returns the seconds of waiting, with
  // those in which the MPI has lent the core; has something come; was there nothing to do at the end?
  double run(double seconds, bool& received, bool& nothing);

  Event event;
  double poll_at = 0;

 private:
  std::size_t under_way() const { return operations_.size() + exchanges_.size(); }
  int completed(const Completion& each);
  bool advance();
  bool select();
  void admit();
  void leave(Lane& lane);
  int share_of(const Operation& operation) const;

  static constexpr int kRequests = 64;  // of all lanes, but for those of the first operation; sends and receives halves
  static constexpr double kSpin = 5e-6;
  static constexpr int kLeastTurns = 256;  // that take less than 2 ms, but where many ranks share a core
  static constexpr double kMost = 50;      // times as long, before so many turns

  Transport& transport_;
  double poll_every_;
  std::vector<Operation*> operations_;
  std::vector<Exchange*> exchanges_;
  std::vector<Lane*> running_;
  std::vector<Completion> completed_;
  int free_ = kRequests / 2;
};

// An operation on a single rank, whose lanes never wait, for about so many seconds at most, or up to an event.
void run_alone(Operation& operation, double seconds, Event& event);

}  // namespace gq::runtime
