#include <algorithm>

#include "gq/adaptive_doors.hpp"
#include "gq/doors.hpp"
#include "gq/runtime/event.hpp"
#include "gq/runtime/own_selection.hpp"

namespace gq::runtime {

namespace {

constexpr std::size_t kNot = SIZE_MAX;

}  // namespace

OwnSelection::OwnSelection(Operation& operation) : operation_(operation), short_of_(operation.tensors.size(), kNot) {
  std::vector<std::vector<Part>> parts(operation.tensors.size());
  for (int lane = 0; lane < static_cast<int>(operation.program.lanes.size()); ++lane)
    for (int chunk = 0; chunk < static_cast<int>(operation.program.lanes[lane].size()); ++chunk) {
      const std::vector<Extent>& extents = operation.program.lanes[lane][chunk].extents;
      std::vector<Kept>& kept = operation.own_kept[operation.place(lane, chunk)];
      kept.resize(extents.size());
      for (std::size_t number = 0; number < extents.size(); ++number) {
        const Extent& extent = extents[number];
        const Part part = {&extent, &kept, number};
        if (extent.tensor == Extent::kBatch) {
          for (const Region& region : extent.regions) add_short(region.segment);
        } else if (extent.total > kTallestRegion) {
          parts[extent.tensor].push_back(part);
          continue;
        } else {
          add_short(extent.tensor);
        }
        short_parts_.push_back(part);
        regions_ += extent.regions.size();
      }
    }
  for (std::vector<Part>& found : parts)
    if (!found.empty()) add_long(found);
  chosen_index_.resize(room_);
  chosen_value_.resize(room_);
}

void OwnSelection::add_short(std::size_t tensor) {
  if (short_of_[tensor] != kNot) return;
  short_of_[tensor] = short_.size();
  const std::size_t size = operation_.tensors[tensor].size;
  short_.push_back({tensor, room_, operation_.tensors[tensor].coder->options.most(size, size), true});
  room_ += short_.back().count;
}

// Parts in memory order: ties are broken by that.
void OwnSelection::add_long(std::vector<Part>& parts) {
  std::sort(parts.begin(), parts.end(),
            [](const Part& one, const Part& two) { return one.extent->start < two.extent->start; });
  std::vector<Selection::Part> given;
  for (const Part& part : parts) given.push_back({part.extent, nullptr, operation_.errors(*part.extent, false)});
  const Extent& first = *parts.front().extent;
  Long& made = long_.emplace_back();
  made.selection.begin(operation_, operation_.coder(first).options, given, first.total);
  made.parts.swap(parts);
}

bool OwnSelection::step() {
  const Timed timed(operation_.spent.encode);
  if (short_done_ < short_.size()) {
    std::size_t elements = 0;
    while (short_done_ < short_.size() && elements < kTallestRegion) {
      elements += operation_.tensors[short_[short_done_].tensor].size;
      choose(short_[short_done_++]);
    }
    if (short_done_ == short_.size()) leave_short();
  } else if (long_done_ < long_.size() && long_[long_done_].selection.step()) {
    const Long& done = long_[long_done_++];
    for (std::size_t at = 0; at < done.parts.size(); ++at)
      (*done.parts[at].kept)[done.parts[at].number] = done.selection.kept(at);
  }
  return short_done_ == short_.size() && long_done_ == long_.size();
}

void OwnSelection::choose(Short& chosen) {
  const Tensor& tensor = operation_.tensors[chosen.tensor];
  const float* x = tensor.source.floats();
  if (!x) {
    loaded_ = operation_.pool.take(tensor.size * sizeof(float));
    tensor.source.load(0, tensor.size, loaded_.floats());
    x = loaded_.floats();
  }
  const std::int64_t count =
      select_most(x, tensor.residual, tensor.new_residual, tensor.size, chosen.count, tensor.coder->options.separate,
                  chosen_index_.data() + chosen.first, chosen_value_.data() + chosen.first);
  chosen.finite = count >= 0;
  chosen.count = count < 0 ? 0 : static_cast<std::size_t>(count);
}

// Entries of tensors become those of extents, region after region.
void OwnSelection::leave_short() {
  std::size_t entries = 0;
  for (const Short& each : short_) entries += each.count;
  index_.reserve(entries);
  value_.reserve(entries);
  counts_.reserve(regions_);
  for (const Part& part : short_parts_) {
    Kept& kept = (*part.kept)[part.number];
    kept = {index_.data() + index_.size(), value_.data() + value_.size(), counts_.data() + counts_.size(), 0, true};
    const bool batch = part.extent->tensor == Extent::kBatch;
    std::size_t start = part.extent->start;
    for (const Region& region : part.extent->regions) {
      if (batch) start = region.grid.start;
      leave(region, start, kept);
      start += region.size;
    }
  }
}

void OwnSelection::leave(const Region& region, std::size_t start, Kept& kept) {
  const Short& chosen = short_[short_of_[region.segment]];
  const std::uint32_t* const first = chosen_index_.data() + chosen.first;
  const std::uint32_t* const begin = std::lower_bound(first, first + chosen.count, start);
  const std::uint32_t* const end = std::lower_bound(begin, first + chosen.count, start + region.size);
  for (const std::uint32_t* at = begin; at < end; ++at) index_.push_back(*at - static_cast<std::uint32_t>(start));
  const float* const values = chosen_value_.data() + chosen.first;
  value_.insert(value_.end(), values + (begin - first), values + (end - first));
  counts_.push_back(end - begin);
  kept.count += static_cast<std::size_t>(end - begin);
  if (!chosen.finite) kept.finite = kept.finite && finite(chosen.tensor, start, region.size);
}

// Of a tensor of which a value is not finite: is it none of these?
bool OwnSelection::finite(std::size_t number, std::size_t start, std::size_t n) {
  const Tensor& tensor = operation_.tensors[number];
  float* const v = operation_.scratch(1);
  tensor.source.load(start, n, v);
  if (!tensor.residual) return all_finite(v, n) != 0;
  return add_finite(v, tensor.residual + start, reinterpret_cast<std::uint8_t*>(v), n) == 0;
}

}  // namespace gq::runtime
