// What a lane does with running values and results; how it encodes: runtime_lane_encoding.cpp.
#include <algorithm>
#include <cstring>

#include "gq/doors.hpp"
#include "gq/runtime/arithmetic.hpp"
#include "gq/runtime/lane.hpp"

namespace gq::runtime {

// --- running values ---

void Lane::make_room(int number_of_chunk) {
  Running& running = running_[number_of_chunk];
  if (running.known) return;
  running.known = true;
  running.lent.clear();
  std::size_t lent = 0;  // an even number of floats to each piece, so that float64 values are aligned
  for (const Piece& piece : chunks_[number_of_chunk].pieces) {
    running.lent.push_back(lent);
    if (!operation.direct(piece.tensor)) lent += (piece.size * operation.width(piece.tensor) + 1) / 2 * 2;
  }
  if (lent > 0) running.block = operation.pool.take(lent * sizeof(float));
}

float* Lane::running(int number_of_chunk, int number_of_piece) {
  const Piece& piece = chunks_[number_of_chunk].pieces[number_of_piece];
  if (running_[number_of_chunk].in_residual)
    return operation.tensors[piece.tensor].new_residual + piece.parts.front().start;
  if (!operation.direct(piece.tensor))
    return running_[number_of_chunk].block.floats() + running_[number_of_chunk].lent[number_of_piece];
  return operation.tensors[piece.tensor].target.floats() + piece.parts.front().start * operation.width(piece.tensor);
}

// The choice of what is sent of own values has left them all in the new residual. A sum that is formed there need not
// be copied: the encoder writes the error over it.
bool Lane::may_sum_in_residual(const Instruction& instruction) const {
  if (!instruction.in_residual || !operation.selection || !operation.feeds_back) return false;
  for (const Extent& extent : chunk(instruction).extents)
    if (!operation.direct(extent.tensor) || operation.wide(extent.tensor) || operation.coder(extent).sums) return false;
  return true;
}

// Of the extent under way.
Touched& Lane::touched(int number_of_chunk) {
  std::vector<Touched>& found = running_[number_of_chunk].touched;
  found.resize(chunks_[number_of_chunk].extents.size());
  return found[extent_];
}

void Lane::drop(int number_of_chunk) {
  running_[number_of_chunk].known = running_[number_of_chunk].in_residual = false;
  running_[number_of_chunk].block.clear();
}

// --- values ---

// An event at the extent under way.
void Lane::tell(Event& event, Kind kind, int number_of_chunk, const void* data, std::size_t nbytes) const {
  event.kind = kind;
  event.chunk = number_of_chunk;
  event.extent = static_cast<int>(extent_);
  event.data = data;
  event.nbytes = nbytes;
}

void Lane::begin_sum(const Instruction& instruction, Event& event) {
  const Chunk& summed = chunk(instruction);
  make_room(instruction.chunk);
  if (summed.extents.empty()) return next();
  if (extent_ == 0) running_[instruction.chunk].in_residual = may_sum_in_residual(instruction);
  const Timed timed(operation.spent.encode);
  on_extents(summed, event, [&](const Extent& extent) {
    float* const y = running(instruction.chunk, extent);
    if (!begin_extent(instruction, extent, y)) tell(event, Kind::kBegunFlaw, instruction.chunk, y);
  });
  if (extent_ == summed.extents.size()) next();
}

// y := own values of an extent; false if one is not finite.
bool Lane::begin_extent(const Instruction& instruction, const Extent& extent, float* y) {
  const Coder& coder = operation.coder(extent);
  const bool region_by_region = operation.plain_batch(extent) && !coder.sums;
  const bool formed = region_by_region || running_[instruction.chunk].in_residual;
  const Operation::Own own = formed ? Operation::Own{nullptr, nullptr} : operation.own(extent);
  bool good;
  if (running_[instruction.chunk].in_residual) {
    good = operation.kept(number, instruction.chunk, extent_)->finite;
  } else if (region_by_region) {
    good = begin_regions(extent, instruction.clears, y);
  } else if (coder.sums) {
    float* const errors = operation.errors(extent, false);
    state_.clipped = 0;
    good = coder.sums->begin(coder.options, own.x, own.residual, errors, y, extent.table(),
                             operation.streams(0, program_.rank), operation.kept(number, instruction.chunk, extent_),
                             touched(instruction.chunk), state_);
    operation.keep(extent, errors);
    operation.spent.saturated += state_.clipped;
  } else {
    auto* const sum = reinterpret_cast<std::uint8_t*>(y);
    good = operation.wide(extent.tensor) ? !wide_add(doubles(own.x), own.residual, sum, extent.size)
                                         : !add_finite(own.x, own.residual, sum, extent.size);
    float* const errors = instruction.clears ? operation.errors(extent, false) : nullptr;
    if (errors) std::fill_n(errors, extent.size, 0.0f);
    operation.keep(extent, errors);
  }
  return good;
}

// y := own values of each region of a batch, from where its tensor is. `clears`: the new residual becomes zero.
bool Lane::begin_regions(const Extent& extent, bool clears, float* y) {
  bool good = true;
  for (const Region& region : extent.regions) {
    const Tensor& tensor = operation.tensors[region.segment];
    const std::size_t start = region.grid.start;
    auto* const sum = reinterpret_cast<std::uint8_t*>(y);
    good &= !add_finite(tensor.source.floats() + start, shifted(tensor.residual, start), sum, region.size);
    if (clears && tensor.new_residual) std::fill_n(tensor.new_residual + start, region.size, 0.0f);
    y += region.size;
  }
  return good;
}

// Decodes a wire into a running value or the result, or adds it; notes if it says that a value is not finite.
void Lane::decode(const Instruction& instruction, Event& event) {
  if (!payload_) {
    if (!open_payload(instruction)) return next();
    if (instruction.result)
      drop(instruction.chunk);
    else
      make_room(instruction.chunk);
  }
  const double scale = instruction.result ? program_.scale : 1;
  if (decode_extents(instruction, scale, event)) close_payload(event);
}

// The bytes of a wire behind its header; false if a value of the chunk is not finite, so that they say nothing.
bool Lane::open_payload(const Instruction& instruction) {
  std::size_t nbytes = 0;
  const std::uint8_t* const wire = wire_of(instruction.slot, instruction.part, nbytes);
  const Slot& slot = slots_[instruction.slot];
  if (slot.post) {
    const Header& header = heads_[slot.heads + instruction.part].header;
    if (header.kind == Header::kNotFinite) flaw(instruction).note(header.rank, header.word);
  }
  // Unchecked values are looked at all the same: the first of all flaws may be there.
  if (flaw(instruction).known && !(slot.remote && slot.exposure.unchecked())) return false;
  payload_ = wire + Header::kSize;
  payload_nbytes_ = nbytes - Header::kSize;
  offset_ = 0;
  return true;
}

// All of it has been decoded; the next instruction.
void Lane::close_payload(Event& event) {
  if (offset_ != payload_nbytes_) {
    event.kind = Kind::kMalformed;
    event.extent = -1;
    event.data = payload_;
    event.nbytes = payload_nbytes_;
    event.code = static_cast<int>(offset_);
  }
  payload_ = nullptr;
  next();
}

// Decodes each region of a batch to where the tensor is.
std::int64_t Lane::decode_regions(const Coder& coder, const Extent& extent, const std::uint8_t* wire,
                                  std::size_t nbytes, double scale) {
  targets_.clear();
  for (const Region& region : extent.regions)
    targets_.push_back(operation.tensors[region.segment].target.floats() + region.grid.start);
  if (coder.decode_apart)
    return coder.decode_apart(coder.options, wire, nbytes, targets_.data(), extent.table(), scale);
  std::size_t read = 0;
  for (std::size_t at = 0; at < targets_.size(); ++at) {
    const std::int64_t used = coder.decode(coder.options, wire + read, nbytes - read, targets_[at],
                                           {&extent.regions[at], 1}, scale, false, false);
    if (used < 0) return used;
    read += static_cast<std::size_t>(used);
  }
  return static_cast<std::int64_t>(read);
}

// Decodes some extents; was the last of them that of the chunk, and all bytes lawful?
bool Lane::decode_extents(const Instruction& instruction, double scale, Event& event) {
  const Chunk& decoded = chunk(instruction);
  if (decoded.extents.empty()) return true;
  const Timed timed(operation.spent.decode);
  bool lawful = true;
  on_extents(decoded, event, [&](const Extent& extent) { lawful = decode_extent(instruction, extent, scale, event); });
  return lawful && extent_ == decoded.extents.size();
}

// False if its bytes are not lawful, or gone.
bool Lane::decode_extent(const Instruction& instruction, const Extent& extent, double scale, Event& event) {
  if (slots_[instruction.slot].exposed) return keep_in_place(extent, instruction.chunk, event);
  if (slots_[instruction.slot].remote && flaw(instruction).known) return skip_remote(instruction, extent, event);
  const bool result = instruction.result, direct = operation.direct(extent.tensor);
  const bool region_by_region = result && by_region(instruction, extent);
  float* y = nullptr;
  if (!result)
    y = running(instruction.chunk, extent);
  else if (direct)
    y = operation.tensors[extent.tensor].target.floats() + extent.start * operation.width(extent.tensor);
  else if (!region_by_region)
    y = operation.scratch(1);
  const std::int64_t nbytes = decode_values(instruction, extent, y, region_by_region || direct ? scale : 1, event);
  if (nbytes < 0) return refused(instruction, extent, nbytes, event);
  offset_ += static_cast<std::size_t>(nbytes);
  if (result && !direct && !region_by_region && operation.store(extent, chunk(instruction), instruction.chunk, y))
    tell(event, Kind::kResultFlaw, instruction.chunk, nullptr);
  return true;
}

// To y, or if that is null to where the tensors of a batch are. As Coder::decode, or kGone.
std::int64_t Lane::decode_values(const Instruction& instruction, const Extent& extent, float* y, double scale,
                                 Event& event) {
  const Coder& coder = coder_of(instruction, extent);
  const std::uint8_t* wire = payload_ + offset_;
  if (slots_[instruction.slot].remote) {
    if (extent.tensor != Extent::kBatch) return decode_remote(instruction, extent, y, scale, event);
    wire = fetch_extent(instruction.slot, extent, event);
    if (!wire) return kGone;
  }
  const std::size_t left = payload_nbytes_ - offset_;
  if (!y) return decode_regions(coder, extent, wire, left, scale);
  if (coder.sums && !instruction.result)
    return coder.sums->decode(coder.options, wire, left, y, extent.table(), instruction.adds,
                              touched(instruction.chunk));
  const bool streams = instruction.result && operation.direct(extent.tensor) && extent.streams;
  return coder.decode(coder.options, wire, left, y, extent.table(), scale, instruction.adds, streams);
}

// Tells why bytes of an extent were not read; true if the lane goes on with the next extent.
bool Lane::refused(const Instruction& instruction, const Extent& extent, std::int64_t why, Event& event) {
  if (why == kGone) return false;
  const std::uint8_t* bytes = payload_ + offset_;
  std::size_t nbytes = payload_nbytes_ - offset_;
  if (slots_[instruction.slot].remote) {
    if (!skip_remote(instruction, extent, event)) return false;
    if (event) return true;
    nbytes = nbytes_of(extent);
    bytes = reinterpret_cast<const std::uint8_t*>(operation.scratch(2));
  }
  tell(event, why == kOutOfRoom ? Kind::kOutOfMemory : Kind::kMalformed, instruction.chunk, bytes, nbytes);
  event.exact = instruction.exact;
  return false;
}

// Decodes what several ranks encoded alike into the running value, and keeps a slice of the error.
void Lane::share_error(const Instruction& instruction, Event& event) {
  if (!payload_) {
    const std::vector<Extent>& extents = chunk(instruction).extents;
    const bool exact = !extents.empty() && operation.coder(extents.front()).sums;  // decodes to what is there
    if (exact || flaw(instruction).known || !open_payload(instruction)) return next();
    make_room(instruction.chunk);
    if (operation.feeds_back) keep_slices(instruction);
  }
  if (!decode_extents(instruction, 1, event)) return;
  end_slices();
  close_payload(event);
}

void Lane::keep_slices(const Instruction& instruction) {
  const std::vector<Piece>& pieces = chunk(instruction).pieces;
  std::size_t elements = 0;
  slices_.clear();
  for (int at = 0; at < static_cast<int>(pieces.size()); ++at) {
    for (const Stretch& part : pieces[at].parts) {
      if (!operation.tensors[part.tensor].loses) continue;
      const std::size_t size = part.stop - part.start;
      const std::size_t begin = part.start + instruction.index * size / instruction.of;
      const std::size_t stop = part.start + (instruction.index + 1) * size / instruction.of;
      float* const now = running(instruction.chunk, at) + part.at + (begin - part.start);
      slices_.push_back({part.tensor, begin, stop, now, nullptr});
      elements += stop - begin;
    }
  }
  before_ = operation.pool.take(elements * sizeof(float));
  float* before = before_.floats();
  for (Slice& slice : slices_) {
    slice.before = before;
    std::memcpy(before, slice.now, (slice.stop - slice.begin) * sizeof(float));
    before += slice.stop - slice.begin;
  }
}

// The running values are decoded ones now: the differences go into the new residuals.
void Lane::end_slices() {
  for (const Slice& slice : slices_) {
    const std::size_t n = slice.stop - slice.begin;
    subtract(slice.before, slice.now, slice.before, n);
    accumulate(slice.before, operation.tensors[slice.tensor].new_residual + slice.begin, n);
  }
  slices_.clear();
  before_.clear();
}

// A running value that nothing will replace becomes the result.
void Lane::finish(const Instruction& instruction, Event& event) {
  const Chunk& finished = chunk(instruction);
  if (finished.extents.empty() || (extent_ == 0 && flaw(instruction).known)) return next();
  const Timed timed(operation.spent.decode);
  on_extents(finished, event, [&](const Extent& extent) { finish_extent(instruction, extent, event); });
  if (extent_ == finished.extents.size()) next();
}

void Lane::finish_extent(const Instruction& instruction, const Extent& extent, Event& event) {
  float* const y = running(instruction.chunk, extent);
  const bool direct = operation.direct(extent.tensor);
  const Coder& coder = operation.coder(extent);
  bool flawed = coder.sums && !coder.sums->finish(coder.options, y, extent.table());
  if (!flawed && !direct)
    flawed = operation.store(extent, chunk(instruction), instruction.chunk, y);
  else if (!flawed)
    flawed = operation.wide(extent.tensor) ? wide_scale(doubles(y), program_.scale, extent.size)
                                           : scale(y, static_cast<float>(program_.scale), extent.size) != 0;
  if (flawed) tell(event, Kind::kFinishFlaw, instruction.chunk, direct || coder.sums ? y : nullptr);
}

}  // namespace gq::runtime
