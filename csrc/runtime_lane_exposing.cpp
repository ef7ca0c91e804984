// What a lane exposes to ranks of its host in place of bytes in a message, and how it reads what they expose.
#include <algorithm>
#include <cstring>

#include "gq/doors.hpp"
#include "gq/runtime/arithmetic.hpp"
#include "gq/runtime/lane.hpp"

namespace gq::runtime {

namespace {

constexpr int kAnswerLane = 15;  // in tags, of all lanes of a call (gqallreduce/transport/exchange.py)

bool all_good(bool wide, const float* x, std::size_t n) {
  return wide ? !wide_flawed(doubles(x), n) : all_finite(x, n);
}

}  // namespace

// Bytes of a chunk's values where a message is these values as they are, else 0.
std::size_t Lane::verbatim_nbytes(const Chunk& chunk, bool exact) const {
  std::size_t nbytes = 0;
  for (const Extent& extent : chunk.extents) {
    if (!coder_of(exact, extent).verbatim()) return 0;
    nbytes += nbytes_of(extent);
  }
  return nbytes;
}

// --- the owner ---

// Where the values that an instruction encodes are exposed, as they lie; null if they are sent. nbytes: of them.
const std::uint8_t* Lane::expose(const Instruction& instruction, Slot& made, std::size_t& nbytes) {
  const std::size_t least = transport_ ? transport_->exposed_from() : 0;
  if (instruction.exposes == Exposes::kNot || least == 0 || operation.feeds_back) return nullptr;
  nbytes = verbatim_nbytes(chunk(instruction), instruction.exact);
  if (nbytes < std::max(least, Exposure::kSize)) return nullptr;  // the reader's room is that of the values
  for (std::size_t at = at_ + 1; at < program_.instructions.size(); ++at) {
    const Instruction& other = program_.instructions[at];
    if (other.slot != instruction.slot) continue;
    if (other.op == Op::kTransmit && transport_->process_of(other.peer) == 0) return nullptr;
    if (other.op == Op::kRelease) break;
  }
  made.flags = instruction.own ? Exposure::kOwn : Exposure::kSum;
  // A result that came from all ranks tells that the only reader has read.
  if (instruction.exposes == Exposes::kUntilRead) made.flags |= Exposure::kAnswered;
  return values_in_place(instruction, nbytes);
}

// Where the values of a chunk lie end to end, as they would be sent; null if they do not, or others cannot read them.
const std::uint8_t* Lane::values_in_place(const Instruction& instruction, std::size_t nbytes) {
  const Chunk& encoded = chunk(instruction);
  if (encoded.pieces.size() != 1) return nullptr;
  const Piece& piece = encoded.pieces.front();
  if (piece.tensor == Extent::kBatch || piece.parts.size() != 1) return nullptr;
  const Array& source = operation.tensors[piece.tensor].source;
  const std::size_t width = operation.width(piece.tensor);
  if (nbytes != piece.size * width * sizeof(float)) return nullptr;
  const float* values = nullptr;
  if (!instruction.own) {
    if (!operation.direct(piece.tensor) || running_[instruction.chunk].in_residual) return nullptr;
    values = running(instruction.chunk, 0);
  } else if (source.floats()) {
    values = source.floats() + piece.parts.front().start * width;
  }
  return values && readable(values, nbytes) ? reinterpret_cast<const std::uint8_t*>(values) : nullptr;
}

// A finished sum that is exposed where it lies is the result. Tells if it is not finite, where it was not checked
// looked.
bool Lane::keep_in_place(const Extent& extent, int number_of_chunk, Event& event) {
  const Array& target = operation.tensors[extent.tensor].target;
  const float* const values = target.floats() + extent.start * target.width();
  if (!all_good(target.wide, values, extent.size)) tell(event, Kind::kSumFlaw, number_of_chunk, values);
  offset_ += nbytes_of(extent);
  return true;
}

// The frame that tells a reader where the values of a slot are.
std::uint8_t* Lane::show(Slot& slot, const Instruction& instruction, Event& event) {
  const bool awaits = slot.flags & Exposure::kAnswered;
  operation.shown.emplace_back(this, instruction.slot, instruction.peer, awaits);
  Shown& shown = operation.shown.back();
  std::memcpy(shown.frame, slot.block.data(), Header::kSize);
  Exposure{reinterpret_cast<std::uint64_t>(slot.exposed), reinterpret_cast<std::uint64_t>(shown.mark.address()),
           shown.mark.value(), slot.flags}
      .write(shown.frame + Header::kSize);
  if (awaits) {
    ++slot.uses;
    ++answers_due_;
    const Ticket ticket = {this, nullptr, -static_cast<int>(operation.shown.size()), shown.peer, true};
    auto* const answer = reinterpret_cast<std::uint8_t*>(&shown.answer);
    if (const int code = transport_->receive(answer, sizeof shown.answer, operation.tag + kAnswerLane, ticket))
      event.kind = Kind::kPost, event.code = code;
  }
  return shown.frame;
}

void Lane::answered(int number_of_slot) {
  --answers_due_;
  unused(slots_[number_of_slot]);
}

// --- the reader ---

// Reads what follows a header of exposed values, and makes it the header of these values; false if they cannot be those
// of the wire.
bool Lane::open_exposed(Slot& slot, const Wire& wire, Header& header) {
  const std::size_t nbytes = verbatim_nbytes(chunks_[wire.chunk], wire.exact);
  if (slot.post->count != 1 || transport_->process_of(slot.post->peer) == 0) return false;
  if (header.rank != static_cast<std::uint32_t>(wire.author) || nbytes == 0 || header.word != nbytes) return false;
  if (!slot.exposure.read(slot.block.data() + Header::kSize, slot.nbytes - Header::kSize)) return false;
  header.kind = Header::kData;
  slot.remote = true;
  operation.spent.bytes_received += nbytes - Exposure::kSize;
  return true;
}

// False if it is not exposed any more: its owner has given up the call, or is gone. Then the lane goes on no more, and
// waits for a message of the owner that does not come.
bool Lane::fetch_here(int number_of_slot, std::size_t from, void* to, std::size_t nbytes, Event& event) {
  Slot& slot = slots_[number_of_slot];
  const int peer = slot.post->peer;
  if (waits_ == Waits::kNot && fetch(transport_->process_of(peer), slot.exposure, from, to, nbytes)) return true;
  if (waits_ != Waits::kNot) return false;
  operation.shown.emplace_back(this, number_of_slot, peer, false);
  const Ticket ticket = {this, nullptr, -static_cast<int>(operation.shown.size()), peer, true};
  auto* const answer = reinterpret_cast<std::uint8_t*>(&operation.shown.back().answer);
  if (const int code = transport_->receive(answer, sizeof(std::uint64_t), operation.tag + kAnswerLane, ticket))
    event.kind = Kind::kPost, event.code = code;
  slot.ready = false;
  waits_ = Waits::kForSlot;
  waits_for_ = number_of_slot;
  return false;
}

// All values of the extent under way in scratch memory, null if they are gone.
const std::uint8_t* Lane::fetch_extent(int number_of_slot, const Extent& extent, Event& event) {
  float* const room = operation.scratch(2);
  const bool good = fetch_here(number_of_slot, offset_, room, nbytes_of(extent), event);
  return good ? reinterpret_cast<const std::uint8_t*>(room) : nullptr;
}

// Goes over an extent that is not summed, and tells if an unchecked value is not finite: it may be the first of all.
// False if the values are gone.
bool Lane::skip_remote(const Instruction& instruction, const Extent& extent, Event& event) {
  const Slot& slot = slots_[instruction.slot];
  const std::uint8_t* const found = fetch_extent(instruction.slot, extent, event);
  if (!found) return false;
  check(slot, extent, instruction.chunk, reinterpret_cast<const float*>(found), event);
  offset_ += nbytes_of(extent);
  return true;
}

// Tells if an unchecked value that was read of an extent is not finite.
void Lane::check(const Slot& slot, const Extent& extent, int number_of_chunk, const float* values, Event& event) {
  if (!slot.exposure.unchecked() || all_good(operation.wide(extent.tensor), values, extent.size)) return;
  tell(event, Kind::kReadFlaw, number_of_chunk, values);
  event.source = slot.exposure.flags & Exposure::kOwn ? static_cast<int>(heads_[slot.heads].header.rank) : -1;
}

// As Coder::decode, of an extent of one tensor that is read block by block, or kGone.
std::int64_t Lane::decode_remote(const Instruction& instruction, const Extent& extent, float* y, double scale,
                                 Event& event) {
  const Coder& coder = coder_of(instruction, extent);
  const bool wide = operation.wide(extent.tensor), as_it_is = !instruction.adds && scale == 1;
  const std::size_t width = operation.width(extent.tensor), itemsize = width * sizeof(float);
  float* const block = operation.scratch(2);
  bool good = true;
  for (std::size_t at = 0, size; at < extent.size; at += size) {
    size = std::min(extent.size - at, kReadAtOnce / itemsize);
    float* const to = y + at * width;
    if (!fetch_here(instruction.slot, offset_ + at * itemsize, as_it_is ? to : block, size * itemsize, event))
      return kGone;
    if (as_it_is) {
      good = good && all_good(wide, to, size);
      continue;
    }
    const Region region = {size, {extent.start + at, 1, 1}, static_cast<std::uint64_t>(extent.tensor)};
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(block);
    const std::int64_t read =
        coder.decode(coder.options, bytes, size * itemsize, to, {&region, 1}, scale, instruction.adds, false);
    good = good && read >= 0;
  }
  return good ? static_cast<std::int64_t>(extent.size * itemsize) : kRefused;
}

// The values of a message that goes on to other ranks are read into its memory at once; false if that is not done yet.
bool Lane::take_whole(int number_of_slot, Event& event) {
  Slot& slot = slots_[number_of_slot];
  if (!slot.remote || !slot.post->forwarded) return true;
  const int number_of_chunk = program_.wires[slot.post->first].chunk;
  const Chunk& taken = chunks_[number_of_chunk];
  Header& header = heads_[slot.heads].header;
  if (extent_ == 0) offset_ = 0;
  if (extent_ < taken.extents.size()) {
    on_extents(taken, event, [&](const Extent& extent) {
      const std::size_t nbytes = nbytes_of(extent);
      auto* const to = reinterpret_cast<float*>(slot.block.data() + Header::kSize + offset_);
      if (!fetch_here(number_of_slot, offset_, to, nbytes, event)) return;
      offset_ += nbytes;
      check(slot, extent, number_of_chunk, to, event);
    });
    if (event || waits_ != Waits::kNot || extent_ < taken.extents.size()) return false;
  }
  const Flaw& found = operation.flaw(number, number_of_chunk);
  if (found.known) header.kind = Header::kNotFinite, header.word = found.number, header.rank = found.rank;
  slot.nbytes = Header::kSize + (found.known ? 0 : header.word);
  header.write(slot.block.data());
  extent_ = 0;
  answer(slot, event);
  slot.remote = false;
  return true;
}

// Tells the owner that what it exposes in a slot has been read, if it waits for that.
void Lane::answer(const Slot& slot, Event& event) {
  if (!(slot.exposure.flags & Exposure::kAnswered)) return;
  operation.answers.push_back(slot.exposure.mark);
  ++answers_under_way_;
  const auto* const mark = reinterpret_cast<const std::uint8_t*>(&operation.answers.back());
  const Ticket ticket = {this, nullptr, -1, slot.post->peer, false};
  if (const int code = transport_->send(mark, sizeof(std::uint64_t), operation.tag + kAnswerLane, ticket))
    event.kind = Kind::kPost, event.code = code;
}

}  // namespace gq::runtime
