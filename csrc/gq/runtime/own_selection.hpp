// What of a rank's own values is encoded, of codecs that send the largest ones of each tensor: chosen before the lanes
// begin, and left for them in Operation::own_kept.
#pragma once
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "gq/runtime/operation.hpp"
#include "gq/runtime/selection.hpp"

namespace gq::runtime {

class OwnSelection {
 public:
  explicit OwnSelection(Operation& operation);

  // Kernel calls on as many elements more as one may have; is it done?
  bool step();

 private:
  // An extent, and where what is kept of it is left.
  struct Part {
    const Extent* extent;
    std::vector<Kept>* kept;
    std::size_t number;
  };

  // A tensor so short that one kernel call chooses from all of it. Its entries are indices in the tensor; until they
  // are chosen `count` is how many there are at most.
  struct Short {
    std::size_t tensor, first, count;
    bool finite;
  };

  struct Long {
    Selection selection;
    std::vector<Part> parts;
  };

  void add_short(std::size_t tensor);
  void add_long(std::vector<Part>& parts);
  void choose(Short& chosen);
  void leave_short();
  void leave(const Region& region, std::size_t start, Kept& kept);
  bool finite(std::size_t tensor, std::size_t start, std::size_t n);

  Operation& operation_;
  std::vector<Short> short_;
  std::vector<std::size_t> short_of_;  // tensor -> its place in `short_`
  std::vector<Part> short_parts_;      // of these tensors, or of batches of them
  std::deque<Long> long_;
  std::size_t short_done_ = 0, long_done_ = 0, room_ = 0, regions_ = 0;
  Pool::Block loaded_;
  // Entries of short tensors as they were chosen, and as those of extents, whose regions have so many each.
  std::vector<std::uint32_t> chosen_index_, index_;
  std::vector<float> chosen_value_, value_;
  std::vector<std::int64_t> counts_;
};

}  // namespace gq::runtime
