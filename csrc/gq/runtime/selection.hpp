// Exact selection of the largest magnitudes of a piece, or of a vector, as gqallreduce/coding/selection.py does it: a
// sample guesses a floor that a little more than k values reach, one pass keeps those, and the k-th is found among
// them.
#pragma once
#include <cstdint>
#include <vector>

#include "gq/runtime/coder.hpp"
#include "gq/runtime/pool.hpp"
#include "gq/runtime/program.hpp"

namespace gq::runtime {

class Operation;

class Selection {
 public:
  // An extent: its running values, or null for own values; and where they are left for the error, or null.
  struct Part {
    const Extent* extent;
    const float* x;
    float* r;
  };

  // From the parts of a piece, or of a whole vector, of a vector of `total` values; they are valid until it is done.
  void begin(Operation& operation, const Options& options, std::vector<Part>& parts, std::size_t total);
  // About one kernel call more; is it done?
  bool step();
  // What is kept of a part, valid until the next `begin`.
  Kept kept(std::size_t part) const;
  std::size_t parts() const { return parts_.size(); }
  const Extent& extent(std::size_t part) const { return *parts_[part].extent; }
  float* errors(std::size_t part) const { return parts_[part].r; }

 private:
  enum class Stage { kAtOnce, kSample, kCollect, kHistogram, kCollectAgain, kChoose, kDone };

  // Of the survivors, those of a part.
  struct Span {
    std::size_t begin, count;
    bool finite;
  };

  // Values are x + e; e may be null.
  struct Values {
    const float *x, *e;
  };
  Values values_of(const Part& part) const;
  void select_at_once();
  void sample();
  void start_collecting(std::uint32_t floor, std::size_t capacity);
  bool collect(bool formed);
  void find_floor();
  void choose();
  void choose_joint();
  void choose_separate();
  int next_sign(const std::size_t share[2], const std::size_t counts[2]) const;
  void keep(std::uint32_t positive, std::uint32_t negative, std::int64_t ties[2], bool joint);
  std::size_t elements() const;

  Operation* operation_ = nullptr;
  const Options* options_ = nullptr;
  std::vector<Part> parts_;
  std::size_t most_ = 0, at_ = 0;
  Stage stage_ = Stage::kDone;
  bool fits_ = true;
  std::uint32_t floor_ = 1;
  std::size_t capacity_ = 0, total_ = 0;
  Pool::Block index_block_, value_block_;
  std::uint32_t* index_ = nullptr;
  float* value_ = nullptr;
  std::vector<Span> spans_;
  std::vector<std::int64_t> counts_;  // of the regions of a part; of parts of one region, their own
  std::vector<std::int64_t> histogram_;
  std::vector<float> sample_;
};

}  // namespace gq::runtime
