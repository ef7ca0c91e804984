// What the runtime cannot decide by itself, and tells its caller.
#pragma once
#include <cstddef>

namespace gq::runtime {

class Operation;

enum class Kind : int {
  kNone,
  kOwnFlaw,     // an own value cannot be sent
  kBegunFlaw,   // a sum of own value and residual, which is the running value now, is not finite
  kSumFlaw,     // a running value cannot be sent
  kFinishFlaw,  // a finished running value is not finite, or its result is not
  kResultFlaw,  // what was stored as the result is not finite
  kForeign,     // a message of another call
  kMalformed,   // a message whose bytes are none
  kPost,        // MPI's error as a message was posted, by its code
  kPoll,        // MPI's error as messages were polled, by its code
  kOutOfMemory,
  kLargeSum,  // a running value is larger than any sum can be: a message held more
  kReadFlaw   // a value that was read where it lies is not finite: an own one of `source`, or of a sum (-1)
};

struct Event {
  Kind kind = Kind::kNone;
  Operation* operation = nullptr;
  int lane = 0, chunk = 0, extent = 0;
  int source = 0, code = 0;
  bool exact = false;          // kMalformed: of what was encoded without loss
  const void* data = nullptr;  // kMalformed: the payload; flaws: the running value of the extent
  std::size_t nbytes = 0;

  explicit operator bool() const { return kind != Kind::kNone; }
};

// Seconds of the monotonic clock.
double now();

// Adds the seconds of its life to a sum.
class Timed {
 public:
  explicit Timed(double& sum) : sum_(sum), began_(now()) {}
  ~Timed() { sum_ += now() - began_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& sum_;
  double began_;
};

}  // namespace gq::runtime
