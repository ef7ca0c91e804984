#include <algorithm>
#include <cmath>
#include <cstring>

#include "gq/adaptive_doors.hpp"
#include "gq/doors.hpp"
#include "gq/runtime/operation.hpp"
#include "gq/runtime/selection.hpp"

namespace gq::runtime {

namespace {

// About one of 32 values is sampled, within these bounds: that costs more for a value than the passes after it.
constexpr std::size_t kSampleLeast = 1 << 8, kSampleMost = 1 << 13;
constexpr std::size_t kSpare = 4096, kBins = 4096, kParts = 64;
constexpr std::uint32_t kNone = 0xFFFFFFFF;  // no magnitude reaches these bits

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

std::size_t Selection::elements() const {
  std::size_t sum = 0;
  for (const Part& part : parts_) sum += part.extent->size;
  return sum;
}

void Selection::begin(Operation& operation, const Options& options, std::vector<Part>& parts, std::size_t total) {
  operation_ = &operation;
  options_ = &options;
  parts_.swap(parts);
  spans_.clear();
  at_ = 0;
  const std::size_t size = elements();
  most_ = options.most(size, total);
  const bool at_once = parts_.size() == 1 && size <= kTallestRegion;
  const bool batch = !parts_.empty() && parts_.front().extent->tensor == Extent::kBatch;
  stage_ = at_once || batch ? Stage::kAtOnce : Stage::kSample;
}

Selection::Values Selection::values_of(const Part& part) const {
  if (part.x) return {part.x, nullptr};
  const Operation::Own own = operation_->own(*part.extent);
  return {own.x, own.residual};
}

bool Selection::step() {
  switch (stage_) {
    case Stage::kAtOnce:
      select_at_once();
      break;
    case Stage::kSample:
      sample();
      break;
    case Stage::kCollect:
      if (!collect(false)) break;
      if (!fits_ || (total_ < most_ && floor_ > 1)) {
        histogram_.assign(kBins, 0);
        at_ = 0;
        stage_ = Stage::kHistogram;
      } else {
        stage_ = Stage::kChoose;
      }
      break;
    case Stage::kHistogram:
      find_floor();
      break;
    case Stage::kCollectAgain:
      if (collect(true)) stage_ = Stage::kChoose;
      break;
    case Stage::kChoose:
      choose();
      stage_ = Stage::kDone;
      break;
    case Stage::kDone:
      break;
  }
  return stage_ == Stage::kDone;
}

Kept Selection::kept(std::size_t part) const {
  const Span& span = spans_[part];
  return {index_ + span.begin, value_ + span.begin, counts_.data() + part, span.count, span.finite};
}

// In one kernel call: of each region of a batch by itself, or of the only part.
void Selection::select_at_once() {
  const Part& part = parts_.front();
  const Regions regions = part.extent->table();
  const bool batch = part.extent->tensor == Extent::kBatch;
  const std::size_t room = batch ? select_regions_bound(regions, options_->pi) : most_;
  index_block_ = operation_->pool.take(room * sizeof(std::uint32_t));
  value_block_ = operation_->pool.take(room * sizeof(float));
  index_ = reinterpret_cast<std::uint32_t*>(index_block_.data());
  value_ = value_block_.floats();
  counts_.assign(regions.count, 0);
  const std::int64_t count =
      batch ? select_regions(part.x, nullptr, part.r, regions, options_->pi, options_->separate, index_, value_,
                             counts_.data())
            : select_most(part.x, nullptr, part.r, part.extent->size, most_, options_->separate, index_, value_);
  if (count < 0)
    std::fill(counts_.begin(), counts_.end(), 0);
  else if (!batch)
    split(index_, static_cast<std::size_t>(count), regions, counts_.data());
  spans_.push_back({0, count < 0 ? 0 : static_cast<std::size_t>(count), count >= 0});
  stage_ = Stage::kDone;
}

// A magnitude that, very likely, at least k and not many more values reach, and how many these may be.
void Selection::sample() {
  const std::size_t size = elements(), sampled_most = std::clamp(size / 32, kSampleLeast, kSampleMost);
  const std::size_t stride = std::max<std::size_t>(1, size / sampled_most) | 1;
  if (options_->separate) return start_collecting(1, size);
  sample_.clear();
  const std::size_t step = std::max<std::size_t>(1, parts_.size() / kParts);
  for (std::size_t at = 0; at < parts_.size(); at += step) {
    const auto [x, e] = values_of(parts_[at]);
    for (std::size_t i = 0; i < parts_[at].extent->size; i += stride)
      sample_.push_back(std::fabs(e ? x[i] + e[i] : x[i]));
  }
  const double all = static_cast<double>(std::max<std::size_t>(size, 1));
  const double sampled = static_cast<double>(sample_.size());
  const double expected = static_cast<double>(most_) * sampled / all;
  const double rank = std::ceil(expected + 4 * std::sqrt(expected) + 4);
  const double likely = std::ceil((rank + 4 * std::sqrt(rank)) * all / std::max(sampled, 1.0));
  const std::size_t wanted = std::max(2 * most_ + kSpare, static_cast<std::size_t>(std::min(likely, all)));
  std::uint32_t floor = 1;
  if (rank < sampled) {
    const auto place = sample_.end() - static_cast<std::ptrdiff_t>(rank);
    std::nth_element(sample_.begin(), place, sample_.end(), [](float a, float b) { return bits_of(a) < bits_of(b); });
    floor = std::max<std::uint32_t>(1, bits_of(*place));
  }
  start_collecting(floor, std::min(size, wanted));
}

void Selection::start_collecting(std::uint32_t floor, std::size_t capacity) {
  stage_ = stage_ == Stage::kHistogram ? Stage::kCollectAgain : Stage::kCollect;
  floor_ = floor;
  capacity_ = capacity;
  total_ = at_ = 0;
  fits_ = true;
  spans_.clear();
  index_block_ = operation_->pool.take(capacity * sizeof(std::uint32_t));
  value_block_ = operation_->pool.take(capacity * sizeof(float));
  index_ = reinterpret_cast<std::uint32_t*>(index_block_.data());
  value_ = value_block_.floats();
}

// What reaches the floor, of one part; were all looked at? `formed`: r holds the values already.
bool Selection::collect(bool formed) {
  if (at_ == parts_.size()) return true;
  const Part& part = parts_[at_++];
  const std::size_t n = part.extent->size, room = capacity_ - total_;
  const auto [x, e] = formed && part.r ? Values{part.r, nullptr} : values_of(part);
  float* const r = formed ? nullptr : part.r;
  if (fits_) {
    const std::size_t count =
        gq::collect(x, e, r, n, floor_, index_ + total_, value_ + total_, room, part.extent->streams);
    fits_ = count <= room;
    spans_.push_back({total_, std::min(count, room), true});
    total_ += std::min(count, room);
  } else if (r) {
    add_finite(x, e, reinterpret_cast<std::uint8_t*>(r), n);
  }
  return at_ == parts_.size();
}

// The lower edge of a histogram's bin that at least k values reach, and how many do.
void Selection::find_floor() {
  const Part& part = parts_[at_++];
  const auto [x, e] = part.r ? Values{part.r, nullptr} : values_of(part);
  histogram(x, e, part.extent->size, histogram_.data());
  if (at_ < parts_.size()) return;
  std::int64_t reached = 0;
  std::size_t bin = kBins;
  while (bin > 0 && reached < static_cast<std::int64_t>(most_)) reached += histogram_[--bin];
  if (reached < static_cast<std::int64_t>(most_)) bin = 0;
  start_collecting(std::max<std::uint32_t>(1, static_cast<std::uint32_t>(bin) << 19),
                   static_cast<std::size_t>(reached));
}

// Of what survived, exactly those that are sent. With a value that is not finite nothing is kept.
void Selection::choose() {
  const bool finite = all_finite(value_, total_);
  counts_.assign(parts_.size(), 0);
  if (finite && options_->separate)
    choose_separate();
  else if (finite)
    choose_joint();
  for (std::size_t at = 0; at < parts_.size(); ++at) {
    Span& span = spans_[at];
    if (!finite) {
      span.finite = all_finite(value_ + span.begin, span.count);
      span.count = 0;
    }
    split(index_ + span.begin, span.count, parts_[at].extent->table(), &counts_[at]);
  }
}

void Selection::choose_joint() {
  const std::size_t k = std::min(most_, total_);
  if (k == 0) return;
  std::size_t above = 0;
  const std::uint32_t bits = kth(value_, total_, k, 0, &above);
  std::int64_t ties[2] = {static_cast<std::int64_t>(k - above), 0};
  keep(bits, bits, ties, true);
}

// Splits k in proportion to the counts of each sign, rounded down; the rest goes to the larger next magnitude.
void Selection::choose_separate() {
  std::size_t counts[2];
  count_signs(value_, total_, &counts[0], &counts[1]);
  const std::size_t all = counts[0] + counts[1], k = std::min(most_, all);
  if (k == 0) return;
  std::size_t share[2];
  for (int sign : {0, 1})
    share[sign] = static_cast<std::size_t>(static_cast<unsigned __int128>(k) * counts[sign] / all);
  if (share[0] + share[1] < k) ++share[next_sign(share, counts)];
  std::uint32_t bits[2] = {kNone, kNone};
  std::int64_t ties[2] = {0, 0};
  for (int sign : {0, 1}) {
    std::size_t above = 0;
    if (share[sign] > 0) bits[sign] = kth(value_, total_, share[sign], sign ? -1 : 1, &above);
    ties[sign] = static_cast<std::int64_t>(share[sign] - above);
  }
  keep(bits[0], bits[1], ties, false);
}

// The sign whose next candidate is larger; in a tie, the one that comes first in memory.
int Selection::next_sign(const std::size_t share[2], const std::size_t counts[2]) const {
  std::uint32_t bits[2] = {0, 0};
  std::size_t place[2] = {0, 0};
  for (int sign : {0, 1}) {
    if (share[sign] >= counts[sign]) continue;
    std::size_t above = 0;
    bits[sign] = kth(value_, total_, share[sign] + 1, sign ? -1 : 1, &above);
    const std::uint32_t same = bits[sign] | (sign ? 0x80000000u : 0u);
    std::size_t left = share[sign] - above;
    while (bits_of(value_[place[sign]]) != same || left-- > 0) ++place[sign];
  }
  if (share[0] >= counts[0] || share[1] >= counts[1]) return share[0] >= counts[0] ? 1 : 0;
  if (bits[0] != bits[1]) return bits[0] > bits[1] ? 0 : 1;
  return place[0] < place[1] ? 0 : 1;
}

// Drops what is below the thresholds: every part in place, in memory order.
void Selection::keep(std::uint32_t positive, std::uint32_t negative, std::int64_t ties[2], bool joint) {
  for (Span& span : spans_)
    span.count = gq::keep(index_ + span.begin, value_ + span.begin, span.count, positive, negative, ties, joint);
}

}  // namespace gq::runtime
