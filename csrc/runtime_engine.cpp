#include <sched.h>

#include <algorithm>
#include <new>

#include "gq/door.hpp"
#include "gq/runtime/engine.hpp"

namespace gq::runtime {

namespace {

// Lets an operation work; what is thrown becomes an event.
template <class Work>
void let(Operation& operation, Event& event, Work work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    event = {};
    event.kind = Kind::kOutOfMemory;
    event.operation = &operation;
  }
}

void let_go_on(Lane& lane, Transport* transport, double poll_at, Event& event) {
  let(lane.operation, event, [&] { lane.advance(transport, poll_at, event); });
}

void let_select(Operation& operation, double poll_at, Event& event) {
  let(operation, event, [&] { operation.go_on_selecting(poll_at); });
}

}  // namespace

int Engine::share_of(const Operation& operation) const {
  const Program& program = operation.program;
  const int lanes = std::min(static_cast<int>(program.lanes.size()), program.lanes_at_once);
  const std::size_t limit = transport_.least_limit();
  const std::size_t parts = std::max<std::size_t>(1, (program.longest + limit - 1) / limit);
  const std::size_t most = std::max(1, kRequests / 2 / lanes);
  return static_cast<int>(std::min(most, 2 * static_cast<std::size_t>(std::max(1, program.messages)) * parts));
}

void Engine::start(Exchange& exchange, int tag) {
  if (!busy()) poll_at = now() + poll_every_;
  exchanges_.push_back(&exchange);
  if (const int code = exchange.start(transport_, tag)) event.kind = Kind::kPost, event.code = code;
  if (exchange.done()) exchanges_.pop_back();
}

void Engine::start(Operation& operation) {
  if (!busy()) poll_at = now() + poll_every_;
  const int share = share_of(operation);
  for (auto& lane : operation.lanes) lane->share = share;  // of this round and the next
  // A call whose codec was prepared, or that was agreed on first, comes later than those that were started after it.
  const auto later = [&](const Operation* other) { return other->number > operation.number; };
  operations_.insert(std::find_if(operations_.begin(), operations_.end(), later), &operation);
}

void Engine::withdraw() {
  for (Operation* operation : operations_) operation->withdraw();
}

void Engine::clear() {
  withdraw();
  operations_.clear();
  exchanges_.clear();
  running_.clear();
  event = {};
  free_ = kRequests / 2;
}

// Lets lanes begin, in order. Those of the first operation need not wait for others: so it goes on, on every rank.
void Engine::admit() {
  for (Operation* operation : operations_) {
    if (operation->selecting) continue;
    while (operation->begun < static_cast<int>(operation->lanes.size())) {
      Lane& lane = *operation->lanes[operation->begun];
      const bool first = operation == operations_.front();
      if ((lane.share > free_ && !first) || operation->live >= operation->program.lanes_at_once) return;
      free_ -= lane.share;
      ++operation->live;
      ++operation->begun;
      lane.begun = true;
      running_.push_back(&lane);
    }
  }
}

// Lets the first lane that can go on do so, up to the next poll, or else a selection; false if there is none.
bool Engine::advance() {
  admit();
  for (Lane* lane : running_) {
    if (lane->finished() || !lane->ready()) continue;
    let_go_on(*lane, &transport_, poll_at, event);
    if (lane->done()) leave(*lane);
    return true;
  }
  return select();
}

// Lets the first operation that has yet to choose what it sends go on with that; false if there is none.
bool Engine::select() {
  const auto selecting = [](const Operation* each) { return each->selecting; };
  const auto found = std::find_if(operations_.begin(), operations_.end(), selecting);
  if (found == operations_.end()) return false;
  let_select(**found, poll_at, event);
  return true;
}

// A lane is done, and all its messages are out: room for the next one.
void Engine::leave(Lane& lane) {
  Operation& operation = lane.operation;
  running_.erase(std::find(running_.begin(), running_.end(), &lane));
  lane.begun = false;
  free_ += lane.share;
  --operation.live;
  if (--operation.left == 0) {
    operation.done = true;
    operation.withdraw();
    operations_.erase(std::find(operations_.begin(), operations_.end(), &operation));
  }
}

// Tells whose message it was; a code of the transport's, or 0.
int Engine::completed(const Completion& each) {
  if (Exchange* const exchange = each.ticket.exchange) {
    const int code = exchange->completed(transport_, each.ticket, each.nbytes);
    if (exchange->done()) exchanges_.erase(std::find(exchanges_.begin(), exchanges_.end(), exchange));
    return code;
  }
  Lane& lane = *each.ticket.lane;
  const int code = each.ticket.receives ? lane.received(transport_, each.ticket.message, each.nbytes)
                                        : lane.sent(transport_, each.ticket.message);
  if (lane.begun && lane.done()) leave(lane);
  if (each.ticket.message >= 0) return code;
  for (auto& other : lane.operation.lanes)  // the answer may be to what another lane has shown
    if (other->begun && other->done()) leave(*other);
  return code;
}

Engine::Turn Engine::work() {
  const FloatGuard guard;
  Turn turn;
  while (!event && advance()) {
    turn.worked = true;
    if (now() >= poll_at) break;
  }
  const double before = turn.ended = now();
  if (event) return turn;
  completed_.clear();
  if (const int code = transport_.poll(completed_)) {
    event.kind = Kind::kPoll;
    event.code = code;
    return turn;
  }
  for (const Completion& each : completed_) {
    const int code = completed(each);
    if (code && !event) event.kind = Kind::kPost, event.code = code;
    turn.received |= each.ticket.receives;
  }
  turn.completed = !completed_.empty();
  turn.ended = now();
  turn.polled = turn.ended - before;
  poll_at = turn.ended + (poll_every_ > 0 ? std::max(poll_every_, turn.polled) : 0);
  return turn;
}

double Engine::run(double seconds, bool& received, bool& nothing) {
  double before = now(), idle = before, waited = 0;
  const double began = before;
  const std::size_t before_all = under_way();
  int turns = 0;
  if (before_all == 0) return 0;  // what was begun was done at once
  while (under_way() == before_all && !event) {
    const Turn turn = work();
    received |= turn.received;
    nothing = !turn.worked && !turn.completed;
    if (!nothing) idle = turn.ended;
    const bool lent = turn.polled > kSpin;  // in a poll that took longer than a spin, the MPI has lent the core
    if (!turn.worked) {
      waited += turn.ended - before;
    } else if (lent) {
      waited += turn.polled;
    }
    before = turn.ended;
    // Time in which other processes had the core is not time in which nothing came.
    if (turn.ended - began > (++turns < kLeastTurns ? kMost * seconds : seconds)) break;
    if (nothing && before - idle > kSpin && !lent && !transport_.yields()) sched_yield();
  }
  return waited;
}

void run_alone(Operation& operation, double seconds, Event& event) {
  const FloatGuard guard;
  const double until = now() + seconds;
  if (operation.selecting) let_select(operation, until, event);
  operation.done = !operation.selecting;
  if (event || operation.selecting) return;
  for (auto& lane : operation.lanes) {
    if (!lane->finished()) let_go_on(*lane, nullptr, until, event);
    operation.done = lane->finished();
    if (event || !operation.done) break;
  }
  operation.done = operation.done && !event;
}

}  // namespace gq::runtime
