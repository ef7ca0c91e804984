// Hostile messages to an operation of the runtime in C++: a target of libFuzzer (`make fuzz`).
//
// An input says which codec, then what ranks 1 and 2 send to rank 0 in each lane: bytes as they are, or behind headers
// that are good, or frames of values that are exposed in memory of this process. They must lead to an event, or to a
// result that is finite; what else is read or written, sanitizers see.
#include <cstring>
#include <limits>

#include "codecs.hpp"
#include "gq/runtime/engine.hpp"
#include "gq/runtime/loopback.hpp"

namespace {

using namespace gq::runtime;

constexpr std::size_t kElements = 12;  // of a chunk
constexpr int kChunks = 3, kLanes = 2, kTag = 5;
constexpr std::uint64_t kSignature = 0x0123456789abcdef;
constexpr std::uint32_t kStep = 77;

// More than any message of these codecs needs for a chunk.
constexpr std::size_t kBound = 400;

Instruction instruction(Op op, int slot = -1, int chunk = -1, int peer = -1) {
  Instruction made{};
  made.op = op;
  made.slot = slot;
  made.chunk = chunk;
  made.peer = peer;
  made.of = 1;
  return made;
}

// Rank 0 gets own values of chunk 0 from rank 1, and two finished chunks in one message from rank 2, in any order.
// forwards: as if the first of these went on to other ranks.
Program program(bool forwards) {
  Program made{};
  made.rank = 0;
  made.size = 4;
  made.slots = 5;
  made.lanes_at_once = kLanes;
  made.messages = 2;
  made.scale = 0.25;
  made.widest = kElements;
  made.longest = 2 * (kBound + Header::kSize);
  made.wires = {{0, 1, false}, {1, 2, false}, {2, 3, false}, {1, 2, false}, {2, 3, false}};
  made.parts = {{}, {}, {}, {1, 0}, {1, 1}};
  const auto add = [&](Instruction each) -> Instruction& {
    made.instructions.push_back(each);
    return made.instructions.back();
  };
  const auto wires = [](Instruction each, int first, int count) {
    each.first = first;
    each.count = count;
    return each;
  };
  const auto encode = [&](int slot, int chunk, bool own) {
    Instruction& each = add(instruction(Op::kEncode, slot, chunk));
    each.own = own;
    each.alone = true;
    each.hop = own ? 0 : 1;
  };
  const auto decode = [&](int slot, int part, int chunk, bool adds) {
    Instruction& each = add(instruction(Op::kDecode, slot, chunk));
    each.part = part;
    each.adds = adds;
    each.result = !adds;
  };
  add(wires(instruction(Op::kPost, 0, -1, 1), 0, 1)).forwarded = forwards;
  add(wires(instruction(Op::kPost, 1, -1, 2), 1, 2));
  encode(2, 1, true);
  add(instruction(Op::kTransmit, 2, -1, 1));
  add(instruction(Op::kRelease, 2));
  const int any = static_cast<int>(made.instructions.size());
  add(wires(instruction(Op::kWaitAny), 0, 2));
  const int of_sum = static_cast<int>(made.instructions.size());
  add(instruction(Op::kBeginSum, -1, 0));
  decode(0, 0, 0, true);
  add(instruction(Op::kRelease, 0));
  add(instruction(Op::kJump)).target = any;
  const int of_results = static_cast<int>(made.instructions.size());
  add(wires(instruction(Op::kJoin, 4), 3, 2));
  add(instruction(Op::kTransmit, 4, -1, 1));
  decode(1, 0, 1, false);
  decode(1, 1, 2, false);
  add(instruction(Op::kRelease, 4));
  add(instruction(Op::kRelease, 1));
  add(instruction(Op::kJump)).target = any;
  made.instructions[any].target = static_cast<int>(made.instructions.size());
  made.choices = {{0, of_sum}, {1, of_results}};
  encode(3, 0, false);
  add(instruction(Op::kTransmit, 3, -1, 1));
  decode(3, 0, 0, false);
  add(instruction(Op::kRelease, 3));

  for (int lane = 0; lane < kLanes; ++lane) {
    std::vector<Chunk> chunks;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const std::size_t start = kElements * (lane * kChunks + chunk);
      Chunk each{kBound, 4 * kElements, {}, {}};
      each.pieces.push_back({0, kElements, {{0, start, start + kElements, 0}}});
      each.extents.push_back(
          {{{kElements, {start, 5, 1}, 0}}, 0, start, kElements, kElements * kLanes * kChunks, 0, 0, false});
      chunks.push_back(each);
    }
    made.lanes.push_back(chunks);
  }
  made.error_holders.assign(kChunks, {0, 1});
  return made;
}

void append_header(std::vector<std::uint8_t>& message, int lane, std::uint32_t author, std::uint64_t nbytes) {
  const Header header = {Header::kData, kStep, kSignature, nbytes, author, 0, static_cast<std::uint8_t>(lane)};
  message.resize(message.size() + Header::kSize);
  header.write(message.data() + message.size() - Header::kSize);
}

// A frame of exposed values, with a bit of it changed if the input says so.
void append_exposed(std::vector<std::uint8_t>& message, Input& input, int lane, std::uint32_t author) {
  static const Mark mark;
  static float values[2][kElements];
  std::fill_n(values[1], kElements, 0.0f);
  values[1][input.number(0, kElements - 1)] = std::numeric_limits<float>::quiet_NaN();
  append_header(message, lane, author, sizeof values[0]);
  message[3] = Header::kExposed;
  const std::uint8_t flags = input.byte();
  const Exposure exposure = {reinterpret_cast<std::uint64_t>(values[flags >> 7]),
                             reinterpret_cast<std::uint64_t>(mark.address()), mark.value(), std::uint64_t(flags & 7)};
  message.resize(message.size() + Exposure::kSize);
  exposure.write(message.data() + message.size() - Exposure::kSize);
  if (flags & 64) message[message.size() - 1 - input.number(0, Header::kSize + Exposure::kSize - 1)] ^= input.byte();
}

void send(Mailboxes& mailboxes, Input& input, int lane, int source) {
  std::vector<std::uint8_t> message;
  // Rank 1 sends one frame, rank 2 two: those of ranks 2 and 3.
  const std::vector<std::uint32_t> authors =
      source == 1 ? std::vector<std::uint32_t>{1} : std::vector<std::uint32_t>{2, 3};
  for (const std::uint32_t author : authors) {
    const std::uint8_t how = input.byte();
    if (how & 128) {
      append_exposed(message, input, lane, author);
      continue;
    }
    const Input::Bytes bytes = input.bytes(input.byte());
    if (how & 1) append_header(message, lane, author, bytes.size);
    // A byte of the header is changed.
    if ((how & 1) && (how & 2)) message[message.size() - 1 - input.number(0, Header::kSize - 1)] ^= input.byte();
    message.insert(message.end(), bytes.data.get(), bytes.data.get() + bytes.size);
  }
  mailboxes.put(source, 0, kTag + lane, message.data(), message.size());
}

// What Python does with an event: notes a value that is not finite, and ends the call for anything else.
bool call_continues(Operation& operation, const Event& event) {
  switch (event.kind) {
    case Kind::kSumFlaw:
    case Kind::kFinishFlaw:
    case Kind::kResultFlaw:
    case Kind::kReadFlaw:
      operation.flaw(event.lane, event.chunk).note(0, 0);
      return true;
    case Kind::kForeign:
    case Kind::kMalformed:
    case Kind::kPoll:
    case Kind::kLargeSum:
      return false;
    default:
      REQUIRE(!"an event that no message can cause");
      return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Codecs codecs;
  static const Program of_rank_0[] = {program(false), program(true)};
  Input input(data, size);
  const Coder* coder = &codecs.chosen(input);
  if (codecs.wide(*coder)) coder = &codecs.first_of(Family::kPlain);
  Mailboxes mailboxes;
  for (int lane = 0; lane < kLanes; ++lane)
    for (const int source : {1, 2}) send(mailboxes, input, lane, source);

  Pool pool;
  constexpr std::size_t n = kElements * kLanes * kChunks;
  std::vector<float> x(n), y(n, 7), before(n, 0.25f), after(n);
  for (std::size_t at = 0; at < n; ++at) x[at] = static_cast<float>(at % 5) - 2;
  Tensor tensor;
  tensor.source.data = reinterpret_cast<std::uint8_t*>(x.data());
  tensor.target.data = reinterpret_cast<std::uint8_t*>(y.data());
  tensor.size = n;
  tensor.residual = before.data();
  tensor.new_residual = after.data();
  tensor.coder = coder;
  Operation operation(of_rank_0[size % 2], pool);
  operation.tensors = {tensor};
  operation.begin(kSignature, kStep);
  operation.tag = kTag;
  operation.feeds_back = true;
  if (coder->options.selects == Selects::kLargest) operation.select_own();
  Loopback transport(mailboxes, 0, std::size_t(1) << 30, 0, 1);
  Engine engine(transport, 0);
  engine.start(operation);
  for (int turn = 0; turn < 500 && !operation.done; ++turn) {
    engine.work();
    if (!engine.event) continue;
    if (!call_continues(operation, engine.event)) break;
    engine.event = {};
  }
  if (operation.done && !operation.first_flaw().known)
    for (const float each : y) REQUIRE(std::isfinite(each));
  engine.clear();
  if (operation.done) operation.rest();
  return 0;
}
