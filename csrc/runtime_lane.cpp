// How a lane goes on, and its messages; its values: runtime_lane_encoding.cpp, runtime_lane_values.cpp.
#include <algorithm>
#include <cstring>

#include "gq/runtime/fault.hpp"
#include "gq/runtime/lane.hpp"

namespace gq::runtime {

namespace {

bool works_on_values(Op op) {
  switch (op) {
    case Op::kEncode:
    case Op::kJoin:
    case Op::kBeginSum:
    case Op::kDecode:
    case Op::kShare:
    case Op::kFinish:
      return true;
    default:
      return false;
  }
}

// Is a look at the clock cheap next to it?
bool takes_time(Op op) { return works_on_values(op) || op == Op::kPost || op == Op::kTransmit; }

}  // namespace

void stop_process() { std::raise(stopping_signal); }

Lane::Lane(Operation& of_operation, int of_number)
    : operation(of_operation),
      number(of_number),
      program_(of_operation.program),
      chunks_(of_operation.program.lanes[of_number]) {}

void Lane::rest() {
  begun = encoding_ = selecting_ = selected_ = false;
  at_ = extent_ = looked_at_ = piece_ = offset_ = payload_nbytes_ = 0;
  waits_ = Waits::kNot;
  chosen_ = sends_under_way_ = receives_under_way_ = answers_due_ = answers_under_way_ = 0;
  targets_for_ = SIZE_MAX;
  payload_ = nullptr;
  for (Slot& slot : slots_) slot = {};
  for (Running& running : running_) running = {};
  heads_.clear();
  arrived_.clear();
  selections_.clear();
  parts_.clear();
  slices_.clear();
  sendings_.clear();
  kept_ = {};
  state_ = {};
  for (Pool::Block* block : {&index_block_, &value_block_, &before_}) block->clear();
}

bool Lane::ready() const {
  if (waits_ == Waits::kForSlot) return slots_[waits_for_].ready;
  return waits_ == Waits::kNot || looked_at_ < arrived_.size();
}

void Lane::advance(Transport* transport, double poll_at, Event& event) {
  transport_ = transport;
  if (operation.traced && waits_ != Waits::kNot)
    operation.spans.push_back({Span::Kind::kWait, Op::kWait, stopped_, now(), number, -1, -1, 0});
  waits_ = Waits::kNot;
  if (slots_.empty()) {
    slots_.resize(program_.slots);
    running_.resize(chunks_.size());
  }
  while (!finished()) {
    const Instruction& instruction = program_.instructions[at_];
    count_instruction();
    const double began = operation.traced ? now() : 0;
    carry_out(instruction, event);
    if (operation.traced) trace(instruction, began);
    if (event) {
      event.operation = &operation;
      event.lane = number;
      return;
    }
    const bool took_time = takes_time(instruction.op) || extent_ > 0;  // a wait, too, that reads exposed values
    if (waits_ != Waits::kNot || (took_time && now() >= poll_at)) return;
  }
}

// Notes an instruction, or a part of it, that takes time.
void Lane::trace(const Instruction& instruction, double began) {
  if (waits_ != Waits::kNot) stopped_ = now();
  if (works_on_values(instruction.op))
    operation.spans.push_back(
        {Span::Kind::kInstruction, instruction.op, began, now(), number, instruction.chunk, -1, 0});
}

void Lane::carry_out(const Instruction& instruction, Event& event) {
  switch (instruction.op) {
    case Op::kPost:
      return post(instruction, event);
    case Op::kEncode:
      return encode(instruction, event);
    case Op::kJoin:
      return join(instruction, event);
    case Op::kTransmit:
      return transmit(instruction, event);
    case Op::kWait:
      return wait(instruction, event);
    case Op::kWaitAny:
      return wait_any(instruction, event);
    case Op::kJump:
      at_ = static_cast<std::size_t>(instruction.target);
      return;
    case Op::kBeginSum:
      return begin_sum(instruction, event);
    case Op::kDecode:
      return decode(instruction, event);
    case Op::kShare:
      return share_error(instruction, event);
    case Op::kDrop:
      drop(instruction.chunk);
      return next();
    case Op::kRelease:
      if (slots_[instruction.slot].remote) answer(slots_[instruction.slot], event);
      unused(slots_[instruction.slot]);
      return next();
    case Op::kFinish:
      return finish(instruction, event);
  }
}

// --- messages ---

// A message cut into parts that are not too long: as many as its bound needs, which both ends know.
template <class Give>
int Lane::cut(std::uint8_t* data, std::size_t nbytes, std::size_t bound, int peer, Give give) {
  const std::size_t limit = transport_->limit(peer);
  const int parts = static_cast<int>(std::max<std::size_t>(1, (bound + limit - 1) / limit));
  for (int part = 0; part < parts; ++part) {
    const std::size_t begin = std::min(part * limit, nbytes);
    const std::size_t end = parts == 1 ? nbytes : std::min((part + 1) * limit, nbytes);
    give(data + begin, end - begin);
  }
  return parts;
}

int Lane::post_parts(Queue& queue, bool receives) {
  int& under_way = receives ? receives_under_way_ : sends_under_way_;
  while (under_way < share && !queue.empty()) {
    const Part part = queue.pop();
    ++under_way;
    const Ticket ticket = {this, nullptr, part.message, part.peer, receives};
    const int tag = operation.tag + number % kLanesTogether;
    const int code = receives ? transport_->receive(part.data, part.nbytes, tag, ticket)
                              : transport_->send(part.data, part.nbytes, tag, ticket);
    if (code) return code;
  }
  return 0;
}

void Lane::post(const Instruction& instruction, Event& event) {
  Slot& slot = slots_[instruction.slot];
  slot.bound = program_.bound_of(number, instruction);
  slot.block = operation.pool.take(slot.bound);
  slot.uses = 1;
  slot.post = &instruction;
  slot.heads = heads_.size();
  heads_.resize(heads_.size() + static_cast<std::size_t>(instruction.count));
  slot.parts_left =
      cut(slot.block.data(), slot.bound, slot.bound, instruction.peer, [&](std::uint8_t* data, std::size_t nbytes) {
        to_receive_.push({data, nbytes, instruction.peer, instruction.slot});
      });
  if (const int code = post_parts(to_receive_, true)) event.kind = Kind::kPost, event.code = code;
  next();
}

int Lane::received(Transport& transport, int number_of_slot, std::size_t nbytes) {
  transport_ = &transport;
  if (number_of_slot < 0) {
    operation.answered(-1 - number_of_slot);
    return 0;
  }
  Slot& slot = slots_[number_of_slot];
  operation.spent.bytes_received += nbytes;
  slot.received += nbytes;
  --receives_under_way_;
  if (--slot.parts_left == 0) {
    slot.nbytes = slot.received;
    slot.ready = true;
    arrived_.push_back(number_of_slot);
  }
  return post_parts(to_receive_, true);
}

void Lane::join(const Instruction& instruction, Event& event) {
  Slot& joined = slots_[instruction.slot];
  joined.bound = program_.bound_of(number, instruction);
  joined.block = operation.pool.take(joined.bound);
  joined.uses = 1;
  for (int at = instruction.first; at < instruction.first + instruction.count; ++at) {
    std::size_t nbytes = 0;
    const std::uint8_t* const wire = wire_of(program_.parts[at].slot, program_.parts[at].number, nbytes);
    if (nbytes > joined.bound - joined.nbytes) {
      event.kind = Kind::kMalformed;
      event.extent = -1;
      event.data = wire;
      event.nbytes = nbytes;
      event.code = static_cast<int>(joined.bound - joined.nbytes);
      return;
    }
    std::memcpy(joined.block.data() + joined.nbytes, wire, nbytes);
    joined.nbytes += nbytes;
  }
  next();
}

// One of the wires in a slot, with its header.
const std::uint8_t* Lane::wire_of(int number_of_slot, int number_of_wire, std::size_t& nbytes) const {
  const Slot& slot = slots_[number_of_slot];
  if (!slot.post) {
    nbytes = slot.nbytes;
    return slot.block.data();
  }
  const Head& head = heads_[slot.heads + number_of_wire];
  nbytes = Header::kSize + (head.header.kind == Header::kData ? head.header.word : 0);
  return slot.block.data() + head.at;
}

void Lane::transmit(const Instruction& instruction, Event& event) {
  Slot& slot = slots_[instruction.slot];
  ++slot.uses;
  const int sending = static_cast<int>(sendings_.size());
  operation.spent.messages += 1;
  operation.spent.bytes_sent += slot.nbytes;
  sendings_.push_back({instruction.slot, 0, instruction.peer, operation.traced ? now() : 0});
  std::uint8_t* const data = slot.exposed ? show(slot, instruction, event) : slot.block.data();
  const std::size_t length = slot.exposed ? Header::kSize + Exposure::kSize : slot.nbytes;
  sendings_.back().parts_left =
      cut(data, length, slot.bound, instruction.peer,
          [&](std::uint8_t* part, std::size_t nbytes) { to_send_.push({part, nbytes, instruction.peer, sending}); });
  if (const int code = post_parts(to_send_, false)) event.kind = Kind::kPost, event.code = code;
  next();
}

int Lane::sent(Transport& transport, int number_of_sending) {
  transport_ = &transport;
  if (number_of_sending < 0) {
    --answers_under_way_;
    return 0;
  }
  Sending& sending = sendings_[number_of_sending];
  --sends_under_way_;
  if (--sending.parts_left == 0) {
    const std::size_t nbytes = slots_[sending.slot].nbytes;
    if (operation.traced)
      operation.spans.push_back(
          {Span::Kind::kSend, Op::kTransmit, sending.began, now(), number, -1, sending.peer, nbytes});
    unused(slots_[sending.slot]);
  }
  return post_parts(to_send_, false);
}

// One use less: by the program, or by a message that is sent.
void Lane::unused(Slot& slot) {
  if (--slot.uses == 0) slot.block.clear();
}

void Lane::wait(const Instruction& instruction, Event& event) {
  Slot& slot = slots_[instruction.slot];
  if (!slot.ready) {
    waits_ = Waits::kForSlot;
    waits_for_ = instruction.slot;
  } else if (open(slot, event) && take_whole(instruction.slot, event)) {
    next();
  }
}

void Lane::wait_any(const Instruction& instruction, Event& event) {
  if (targets_for_ != at_) {
    targets_for_ = at_;
    target_of_.assign(slots_.size(), -1);
    for (int at = instruction.first; at < instruction.first + instruction.count; ++at)
      target_of_[program_.choices[at].slot] = program_.choices[at].target;
  }
  if (chosen_ == instruction.count) {
    chosen_ = 0;
    arrived_.clear();
    looked_at_ = 0;
    at_ = static_cast<std::size_t>(instruction.target);
    return;
  }
  while (looked_at_ < arrived_.size()) {
    const int slot = arrived_[looked_at_];
    const int target = target_of_[slot];
    if (target >= 0 && !(open(slots_[slot], event) && take_whole(slot, event))) return;
    ++looked_at_;
    if (target >= 0) {
      ++chosen_;
      at_ = static_cast<std::size_t>(target);
      return;
    }
  }
  waits_ = Waits::kForAny;
}

// Reads and checks the headers of a message that has arrived; false, and an event, if it is none of this call's.
bool Lane::open(Slot& slot, Event& event) {
  if (slot.opened) return true;
  std::size_t at = 0;
  for (int number_of_wire = 0; number_of_wire < slot.post->count; ++number_of_wire) {
    Header header;
    const Wire& wire = program_.wires[slot.post->first + number_of_wire];
    bool ours = at <= slot.nbytes && header.read(slot.block.data() + at, slot.nbytes - at);
    ours = ours && header.signature == operation.signature && header.step == operation.step && header.lane == number;
    if (ours && header.kind == Header::kData)
      ours = header.rank == static_cast<std::uint32_t>(wire.author) && header.word <= slot.nbytes - at - Header::kSize;
    if (ours && header.kind == Header::kExposed) ours = open_exposed(slot, wire, header);
    if (!ours || header.kind > Header::kNotFinite) {
      event.kind = Kind::kForeign;
      event.source = slot.post->peer;
      return false;
    }
    heads_[slot.heads + number_of_wire] = {at, header};
    at += Header::kSize + (header.kind == Header::kData ? header.word : 0);
  }
  slot.opened = true;
  return true;
}

}  // namespace gq::runtime
