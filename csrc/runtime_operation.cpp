// The values of a call: where they are, and how an extent of them is loaded and stored.
#include <chrono>
#include <cstring>

#include "gq/door.hpp"
#include "gq/doors.hpp"
#include "gq/runtime/arithmetic.hpp"
#include "gq/runtime/event.hpp"
#include "gq/runtime/lane.hpp"
#include "gq/runtime/operation.hpp"
#include "gq/runtime/own_scale.hpp"
#include "gq/runtime/own_selection.hpp"

namespace gq::runtime {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::size_t Program::bound_of(int lane, const Instruction& instruction) const {
  std::size_t bound = 0;
  for (int at = instruction.first; at < instruction.first + instruction.count; ++at) {
    const Chunk& chunk = lanes[lane][wires[at].chunk];
    bound += Header::kSize + (wires[at].exact ? chunk.exact_bound : chunk.bound);
  }
  return bound;
}

// --- memory of a tensor ---

template <class Work>
void Array::by_run(std::size_t start, std::size_t n, Work work) const {
  if (run == 0) {
    work(data + start * itemsize(), std::size_t(0), n);
    return;
  }
  for (std::size_t done = 0; done < n;) {
    const std::size_t row = (start + done) / run, inside = (start + done) % run;
    const std::size_t size = std::min(run - inside, n - done);
    work(data + (row * stride + inside) * itemsize(), done, size);
    done += size;
  }
}

void Array::load(std::size_t start, std::size_t n, float* y) const {
  by_run(start, n, [&](const std::uint8_t* from, std::size_t at, std::size_t size) {
    if (as_it_is())
      std::memcpy(y + at * width(), from, size * itemsize());
    else if (wide)
      widen_floats(from, doubles(y) + at, size);
    else
      widen(from, y + at, size, format);
  });
}

bool Array::store(std::size_t start, std::size_t n, const float* y) const {
  bool flawed = as_it_is() && (wide ? wide_flawed(doubles(y), n) : !all_finite(y, n));
  by_run(start, n, [&](std::uint8_t* to, std::size_t at, std::size_t size) {
    if (as_it_is())
      std::memcpy(to, y + at * width(), size * itemsize());
    else
      flawed |= narrow(y + at, to, size, format) != 0;
  });
  return flawed;
}

// --- headers ---

namespace {

constexpr std::uint8_t kMagic[2] = {'G', 'Q'}, kVersion = 1;

template <class Number>
Number read_at(const std::uint8_t* buffer, std::size_t at) {
  Number number;
  std::memcpy(&number, buffer + at, sizeof number);
  return number;
}

}  // namespace

void Header::write(std::uint8_t* buffer) const {
  std::memcpy(buffer, kMagic, 2);
  buffer[2] = kVersion;
  buffer[3] = kind;
  std::memcpy(buffer + 4, &step, 4);
  std::memcpy(buffer + 8, &signature, 8);
  std::memcpy(buffer + 16, &word, 8);
  std::memcpy(buffer + 24, &rank, 4);
  std::memcpy(buffer + 28, &hop, 2);
  buffer[30] = lane;
  buffer[31] = 0;
}

bool Header::read(const std::uint8_t* buffer, std::size_t nbytes) {
  if (nbytes < kSize || std::memcmp(buffer, kMagic, 2) != 0 || buffer[2] != kVersion || buffer[31] != 0) return false;
  kind = buffer[3];
  step = read_at<std::uint32_t>(buffer, 4);
  signature = read_at<std::uint64_t>(buffer, 8);
  word = read_at<std::uint64_t>(buffer, 16);
  rank = read_at<std::uint32_t>(buffer, 24);
  hop = read_at<std::uint16_t>(buffer, 28);
  lane = buffer[30];
  return true;
}

void Flaw::note(std::uint32_t of_rank, std::uint64_t element) {
  if (known && (rank < of_rank || (rank == of_rank && number <= element))) return;
  *this = {of_rank, element, true};
}

// --- a call ---

Operation::Operation(const Program& of_program, Pool& of_pool) : program(of_program), pool(of_pool) {
  const std::size_t count = program.lanes.size();
  flaws.resize(count * program.lanes[0].size());
  own_kept.resize(flaws.size());
  for (std::size_t number = 0; number < count; ++number)
    lanes.push_back(std::make_unique<Lane>(*this, static_cast<int>(number)));
}

void Operation::begin(std::uint64_t of_signature, std::uint32_t of_step) {
  signature = of_signature;
  step = of_step;
  left = static_cast<int>(lanes.size());
  streams_.resize(tensors.size());
  feeds_back = false;
  plain = true;
  value_size_ = sizeof(float);
  for (const Tensor& tensor : tensors) {
    feeds_back = feeds_back || tensor.new_residual;  // not of one of size 0
    plain = plain && tensor.plain();
    if (tensor.source.wide) value_size_ = sizeof(double);
  }
}

void Operation::rest() {
  for (auto& lane : lanes) lane->rest();
  std::fill(flaws.begin(), flaws.end(), Flaw{});
  for (std::vector<Kept>& each : own_kept) each.clear();
  for (Pool::Block& block : scratch_) block.clear();
  selection.reset();
  shown.clear();
  answers.clear();
  spans.clear();
  spent = {};
  streams_of_ = {-1, -1};
  traced = selecting = done = false;
  live = begun = 0;
}

Operation::~Operation() = default;

void Operation::answered(int number) {
  const std::uint64_t answer = shown[number].answer;
  for (Shown& each : shown) {
    if (!each.awaited || each.peer != shown[number].peer || each.mark.value() != answer) continue;
    each.awaited = false;
    each.mark.withdraw();
    each.lane->answered(each.slot);
    return;
  }
}

void Operation::withdraw() {
  for (Shown& each : shown) each.mark.withdraw();
}

std::vector<float> Operation::own_scales(double clip, bool rotated) {
  const Timed timed(spent.encode);
  std::vector<OwnScale> found(tensors.size());
  for (const std::vector<Chunk>& chunks : program.lanes)
    for (const Chunk& chunk : chunks)
      for (const Extent& extent : chunk.extents) {
        const Own values = own(extent);
        std::size_t at = 0;
        for (const Region& region : extent.regions) {
          const std::size_t tensor = extent.tensor == Extent::kBatch ? region.segment : extent.tensor;
          const float *x = values.x + at, *e = shifted(values.residual, at);
          rotated ? found[tensor].add_rotated(x, e, region, clip) : found[tensor].add(x, e, region, clip);
          at += region.size;
        }
      }
  std::vector<float> scales;
  for (const OwnScale& each : found) scales.push_back(each.of(clip));
  return scales;
}

void Operation::select_own() {
  selection = std::make_unique<OwnSelection>(*this);
  selecting = true;
}

void Operation::go_on_selecting(double poll_at) {
  const double began = traced ? now() : 0;
  do {
    selecting = !selection->step();
  } while (selecting && now() < poll_at);
  if (traced) spans.push_back({Span::Kind::kSelect, Op::kEncode, began, now(), 0, -1, -1, 0});
}

Flaw Operation::first_flaw() const {
  Flaw first;
  for (const Flaw& each : flaws)
    if (each.known) first.note(each.rank, each.number);
  return first;
}

float* Operation::scratch(int which) {
  if (!scratch_[which]) scratch_[which] = pool.take(program.widest * value_size_);
  return scratch_[which].floats();
}

const Stream* Operation::streams(int hop, int author) {
  const std::pair<int, int> encoding = {hop, author};
  if (streams_of_ == encoding) return streams_.data();
  streams_of_ = encoding;
  for (std::size_t number = 0; number < tensors.size(); ++number)
    streams_[number] = {tensors[number].key0, tensors[number].key1, static_cast<std::uint32_t>(hop),
                        static_cast<std::uint32_t>(author), tensors[number].step};
  return streams_.data();
}

Operation::Own Operation::own(const Extent& extent) {
  if (extent.tensor != Extent::kBatch) {
    const Tensor& tensor = tensors[extent.tensor];
    const float* const residual = shifted(tensor.residual, extent.start);
    if (const float* const x = tensor.source.floats()) return {x + extent.start * tensor.source.width(), residual};
    tensor.source.load(extent.start, extent.size, scratch(0));
    return {scratch(0), residual};
  }
  float* const x = scratch(0);
  const bool fed = tensors[extent.coded_as()].residual != nullptr;
  std::size_t at = 0;
  for (const Region& region : extent.regions) {
    const Tensor& tensor = tensors[region.segment];
    tensor.source.load(region.grid.start, region.size, x + at);
    if (fed) std::memcpy(scratch(2) + at, tensor.residual + region.grid.start, region.size * sizeof(float));
    at += region.size;
  }
  return {x, fed ? scratch(2) : nullptr};
}

float* Operation::errors(const Extent& extent, bool known) {
  if (!feeds_back) return nullptr;
  if (extent.tensor != Extent::kBatch) return tensors[extent.tensor].new_residual + extent.start;
  float* const errors = scratch(3);
  std::size_t at = 0;
  for (const Region& region : extent.regions) {
    if (known)
      std::memcpy(errors + at, tensors[region.segment].new_residual + region.grid.start, region.size * sizeof(float));
    at += region.size;
  }
  return errors;
}

void Operation::keep(const Extent& extent, const float* errors) {
  if (!errors || extent.tensor != Extent::kBatch) return;
  for (const Region& region : extent.regions) {
    std::memcpy(tensors[region.segment].new_residual + region.grid.start, errors, region.size * sizeof(float));
    errors += region.size;
  }
}

bool Operation::store(const Extent& extent, const Chunk& chunk, int chunk_number, float* y) {
  bool flawed = false;
  std::size_t place = 0;
  if (plain_batch(extent)) {
    flawed = scale(y, static_cast<float>(program.scale), extent.size) != 0;
    for (const Region& region : extent.regions) {
      float* const to = tensors[region.segment].target.floats() + region.grid.start;
      std::memcpy(to, y + place, region.size * sizeof(float));
      place += region.size;
    }
    return flawed;
  }
  float* const rounded = scratch(0);
  if (wide(extent.tensor))
    multiply(doubles(y), program.scale, doubles(rounded), extent.size);
  else
    multiply(y, program.scale, rounded, extent.size);
  const bool batch = extent.tensor == Extent::kBatch;
  const Region whole = {extent.size, {extent.start, 1, 1}, static_cast<std::uint64_t>(extent.tensor)};
  const Regions regions = batch ? extent.table() : Regions{&whole, 1};
  for (const Region& region : regions) {
    const Tensor& tensor = tensors[region.segment];
    flawed |= tensor.target.store(region.grid.start, region.size, rounded + place);
    if (tensor.narrow && tensor.new_residual)
      keep_rounding(extent, chunk, chunk_number, region, y + place, rounded + place);
    place += region.size;
  }
  return flawed;
}

// Adds this rank's share of what the buffer lost of y to the residual. Worthless if it is not finite.
void Operation::keep_rounding(const Extent& extent, const Chunk& chunk, int chunk_number, const Region& region,
                              const float* y, float* rounded) {
  const auto [holder, holders] = program.error_holders[chunk_number];
  if (holder < 0) return;
  const std::size_t index = static_cast<std::size_t>(holder), of = static_cast<std::size_t>(holders);
  const Tensor& tensor = tensors[region.segment];
  for (const Stretch& part : chunk.pieces[extent.piece].parts) {
    const std::size_t size = part.stop - part.start, begin = region.grid.start;
    if (part.tensor != static_cast<int>(region.segment) || begin < part.start || begin >= part.stop) continue;
    const std::size_t low = std::max(part.start + index * size / of, begin);
    const std::size_t high = std::min(part.start + (index + 1) * size / of, begin + region.size);
    if (low >= high) return;
    tensor.target.load(begin, region.size, rounded);
    float* const back = rounded + (low - begin);
    multiply(back, 1 / program.scale, back, high - low);
    subtract(y + (low - begin), back, back, high - low);
    accumulate(back, tensor.new_residual + low, high - low);
    return;
  }
}

}  // namespace gq::runtime
