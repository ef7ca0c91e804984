// How a lane encodes: selects, encodes extents or regions, and seals the message.
#include <algorithm>

#include "gq/adaptive_doors.hpp"
#include "gq/doors.hpp"
#include "gq/runtime/arithmetic.hpp"
#include "gq/runtime/lane.hpp"

namespace gq::runtime {

void Lane::encode(const Instruction& instruction, Event& event) {
  const Chunk& encoded = chunk(instruction);
  Slot& made = slots_[instruction.slot];
  if (!encoding_) {
    encoding_ = true;
    piece_ = 0;
    state_.clipped = state_.entries = 0;
    made.bound = Header::kSize + (instruction.exact ? encoded.exact_bound : encoded.bound);
    std::size_t nbytes = 0;
    made.exposed = flaw(instruction).known ? nullptr : expose(instruction, made, nbytes);
    offset_ = made.exposed ? nbytes : 0;
    made.block = operation.pool.take(made.exposed ? Header::kSize : made.bound);
    made.uses = 1;
    selected_ = instruction.own || instruction.exact || encoded.extents.empty();
    if (!selected_) {
      const Coder& coder = operation.coder(encoded.extents.front());
      selected_ = coder.sums || coder.options.selects != Selects::kLargest;
    }
  }
  const bool skipped = made.exposed || (extent_ == 0 && flaw(instruction).known);
  const Timed timed(operation.spent.encode);
  if (!skipped && !selected_) {
    std::size_t elements = 0;
    while (!selected_ && elements < kBetweenPolls && select(instruction)) {
      elements += encoded.pieces[piece_].size;
      selected_ = ++piece_ == encoded.pieces.size();
    }
    return;
  }
  if (!skipped && extent_ < encoded.extents.size()) {
    on_extents(encoded, event, [&](const Extent& extent) { encode_extent(instruction, extent, made, event); });
    if (event || extent_ < encoded.extents.size()) return;
  }
  seal(instruction, made);
}

// One step of choosing what of the running values of a piece is encoded; true when done.
bool Lane::select(const Instruction& instruction) {
  const Chunk& selected = chunk(instruction);
  if (selections_.size() < selected.pieces.size()) selections_.resize(selected.pieces.size());
  Selection& selection = selections_[piece_];
  if (!selecting_) {
    parts_.clear();
    const int piece = static_cast<int>(piece_);
    const auto before = [](const Extent& extent, int of) { return extent.piece < of; };
    const auto first = std::lower_bound(selected.extents.begin(), selected.extents.end(), piece, before);
    for (auto at = first; at != selected.extents.end() && at->piece == piece; ++at) {
      const Extent& extent = *at;
      const float* const x = running(instruction.chunk, extent);
      float* const errors = instruction.alone ? operation.errors(extent, false) : nullptr;
      parts_.push_back({&extent, x, errors == x ? nullptr : errors});
    }
    if (parts_.empty()) return true;
    selection.begin(operation, operation.coder(*first).options, parts_, first->total);
    selecting_ = true;
  }
  if (!selection.step()) return false;
  for (std::size_t at = 0; at < selection.parts(); ++at)
    if (instruction.alone) operation.keep(selection.extent(at), selection.errors(at));
  selecting_ = false;
  return true;
}

// The values of an extent that were chosen; null if all are encoded.
const Kept* Lane::kept_of(const Instruction& instruction, const Extent& extent, const Operation::Own& own,
                          float* errors) {
  const Options& options = operation.coder(extent).options;
  if (options.selects == Selects::kNothing) return nullptr;
  if (options.selects == Selects::kOfColumns) {
    const Regions regions = extent.table();
    const std::size_t room = select_bound(regions, options.pi);
    index_block_ = operation.pool.take(room * sizeof(std::uint32_t));
    value_block_ = operation.pool.take(room * sizeof(float));
    std::uint32_t* const index = reinterpret_cast<std::uint32_t*>(index_block_.data());
    counts_.assign(regions.count, 0);
    const std::int64_t count = select_columns(own.x, own.residual, errors, regions, options.pi, options.separate, index,
                                              value_block_.floats(), counts_.data());
    kept_ = {index, value_block_.floats(), counts_.data(), static_cast<std::size_t>(std::max<std::int64_t>(count, 0)),
             count >= 0};
    return &kept_;
  }
  if (instruction.own) return operation.kept(number, instruction.chunk, extent_);
  std::size_t part = 0;
  while (selections_[extent.piece].extent(part).at != extent.at) ++part;
  kept_ = selections_[extent.piece].kept(part);
  return &kept_;
}

bool Lane::too_large(const Extent& extent, const float* x) const {
  return operation.wide(extent.tensor) ? exceeds(doubles(x), extent.size, kLargestWithError)
                                       : exceeds(x, extent.size, kLargestWithError);
}

// A value that is not finite does not keep later extents from being encoded: the first one in C order may lie there.
void Lane::encode_extent(const Instruction& instruction, const Extent& extent, Slot& made, Event& event) {
  const Coder& coder = coder_of(instruction, extent);
  const bool region_by_region = by_region(instruction, extent);
  Operation::Own own = {nullptr, nullptr};
  if (!instruction.own)
    own.x = running(instruction.chunk, extent);
  else if (!region_by_region)
    own = operation.own(extent);
  const bool exact = coder.sums && !instruction.own;  // exact sums lose nothing
  const bool shared = operation.feeds_back && !instruction.own && !instruction.alone && !exact;
  const bool known = coder.options.selects == Selects::kLargest;  // selecting has left the values there
  float* const errors = instruction.alone && !exact && !region_by_region ? operation.errors(extent, known) : nullptr;
  std::uint8_t* const wire = made.block.data() + Header::kSize + offset_;
  std::int64_t nbytes = kRefused;
  if (!shared || !too_large(extent, own.x))
    nbytes = region_by_region ? encode_regions(instruction, extent, own.x, wire)
                              : encode_values(instruction, extent, own, errors, wire);
  if (nbytes == kOutOfRoom) {
    event.kind = Kind::kOutOfMemory;
  } else if (nbytes == kTooLarge) {
    tell(event, Kind::kLargeSum, instruction.chunk, own.x);
  } else if (nbytes < 0) {
    tell(event, instruction.own ? Kind::kOwnFlaw : Kind::kSumFlaw, instruction.chunk, own.x);
  } else {
    offset_ += static_cast<std::size_t>(nbytes);
  }
  operation.keep(extent, errors);
}

// Encodes each region of a batch for itself: own values from where the tensor is (x is null), or running ones from x;
// where values are chosen, what of them was.
std::int64_t Lane::encode_regions(const Instruction& instruction, const Extent& extent, const float* x,
                                  std::uint8_t* wire) {
  const Coder& coder = coder_of(instruction, extent);
  const Stream* const streams = operation.streams(instruction.hop, instruction.author);
  const Kept* const chosen = instruction.exact ? nullptr : kept_of(instruction, extent, {nullptr, nullptr}, nullptr);
  Kept kept;
  if (chosen) {
    state_.entries += chosen->count;
    if (!chosen->finite) return kRefused;
    kept = *chosen;
  }
  vectors_.clear();
  for (const Region& region : extent.regions) {
    const Tensor& tensor = operation.tensors[region.segment];
    const std::size_t start = region.grid.start;
    vectors_.push_back({instruction.own ? tensor.source.floats() + start : x,
                        instruction.own ? shifted(tensor.residual, start) : nullptr,
                        instruction.alone ? shifted(tensor.new_residual, start) : nullptr});
    x = shifted(x, region.size);
  }
  if (coder.encode_apart && !chosen)
    return coder.encode_apart(coder.options, vectors_.data(), wire, extent.table(), streams);
  std::int64_t written = 0;
  for (std::size_t at = 0; at < vectors_.size(); ++at) {
    if (chosen) kept.count = static_cast<std::size_t>(*kept.counts);
    const auto [values, residual, errors] = vectors_[at];
    const std::int64_t nbytes = coder.encode(coder.options, values, residual, errors, wire + written,
                                             {&extent.regions[at], 1}, streams, chosen ? &kept : nullptr, state_);
    if (nbytes < 0) return nbytes;
    written += nbytes;
    if (chosen) kept.index += kept.count, kept.value += kept.count, ++kept.counts;
  }
  return written;
}

std::int64_t Lane::encode_values(const Instruction& instruction, const Extent& extent, const Operation::Own& own,
                                 float* errors, std::uint8_t* wire) {
  const Coder& coder = coder_of(instruction, extent);
  if (coder.sums && !instruction.own)
    return coder.sums->encode(coder.options, own.x, wire, extent.table(), touched(instruction.chunk), state_);
  // Where sums are exact, own values are rounded by the same bits wherever they enter a sum.
  const Stream* const streams =
      coder.sums ? operation.streams(0, program_.rank) : operation.streams(instruction.hop, instruction.author);
  const Kept* const kept = instruction.exact ? nullptr : kept_of(instruction, extent, own, errors);
  if (kept) state_.entries += kept->count;
  return coder.encode(coder.options, own.x, own.residual, errors, wire, extent.table(), streams, kept, state_);
}

// The message is made; its header says whether a value is not finite.
void Lane::seal(const Instruction& instruction, Slot& made) {
  const Flaw& found = flaw(instruction);
  Header header = {Header::kData,
                   operation.step,
                   operation.signature,
                   offset_,
                   static_cast<std::uint32_t>(instruction.author),
                   static_cast<std::uint16_t>(instruction.hop),
                   static_cast<std::uint8_t>(number)};
  made.nbytes = Header::kSize + offset_;
  if (made.exposed) {
    header.kind = Header::kExposed;
  } else if (found.known) {
    header.kind = Header::kNotFinite;
    header.word = found.number;
    header.rank = found.rank;
    made.nbytes = Header::kSize;
  } else {
    operation.spent.selected += state_.entries;
  }
  operation.spent.saturated += state_.clipped;
  header.write(made.block.data());
  encoding_ = false;
  next();
}

}  // namespace gq::runtime
