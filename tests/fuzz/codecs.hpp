// The codecs in C++ as the runtime calls them, each with options that change its messages.
#pragma once
#include <deque>
#include <vector>

#include "gq/levels_doors.hpp"
#include "gq/runtime/coder.hpp"
#include "input.hpp"

class Codecs {
 public:
  Codecs() {
    using gq::Coding;
    for (const int bits : {1, 2, 3, 4, 5, 8}) add_levels(uniform(bits));
    for (const Coding coding : {Coding::kHuffman, Coding::kElias, Coding::kRans}) {
      for (const int bits : {2, 4, 8}) add_coded(uniform(bits), coding);
      add_coded(table(), coding);
    }
    gq::Levels changed = uniform(4);
    changed.rotated = changed.contracted = true;
    add_levels(changed);
    add_coded(changed, Coding::kRans);
    add_levels(table());
    // natural, fp8, MX
    add_levels(floating(4, 0, -6, 7, gq::Order::kAscending, gq::Scale::kNorm));
    add_levels(floating(8, 0, -126, 127, gq::Order::kSignAndMagnitude, gq::Scale::kPowerAbove));
    add_levels(floating(8, 3, -6, 126, gq::Order::kSignAndMagnitude, gq::Scale::kNorm));
    add_levels(floating(8, 2, -14, 123, gq::Order::kSignAndMagnitude, gq::Scale::kPowerOcp));
    add_levels(floating(4, 1, 0, 7, gq::Order::kSignAndMagnitude, gq::Scale::kPowerOcp));
    add_levels(floating(8, 6, 0, 127, gq::Order::kTwosComplement, gq::Scale::kPowerOcp));

    for (const int bits : {1, 4}) add(Family::kEden).bits = bits;
    add(Family::kOneBit);
    for (const int format : {0, 1, 3}) add(Family::kPlain).format = format;
    add(Family::kWide);
    for (const bool golomb : {false, true}) {
      Options& options = add(Family::kAdaptive);
      options.golomb = golomb;
      options.pi = 4;
      options.selects = gq::runtime::Selects::kOfColumns;
    }
    for (const Family family : {Family::kSparse, Family::kUnion}) {
      add_sparse(family, nullptr);
      for (const Family values : {Family::kLevels, Family::kCodedLevels, Family::kPlain})
        add_sparse(family, &first_of(values));
    }
    for (const bool ternary : {false, true}) {
      Options& options = add(Family::kIntegers);
      set_units(options);
      options.ternary = ternary;
    }
    for (const bool rotated : {false, true}) {
      Options& options = add(Family::kMultiples);
      set_units(options);
      options.steps = 7;
      options.rotated = rotated;
    }
    add(Family::kTernary);
  }

  std::size_t size() const { return made_.size(); }
  const gq::runtime::Coder& operator[](std::size_t number) const { return made_[number]; }
  const gq::runtime::Coder& chosen(Input& input) const { return made_[input.byte() % made_.size()]; }
  const gq::runtime::Coder& first_of(gq::runtime::Family family) const {
    for (std::size_t at = 0; at < made_.size(); ++at)
      if (families_[at] == family) return made_[at];
    std::abort();
  }
  bool wide(const gq::runtime::Coder& coder) const { return &coder == &first_of(Family::kWide); }

  // Where a codec has buckets, a grid has one part.
  static bool has_buckets(const gq::runtime::Coder& coder) {
    return coder.options.levels.bits > 0 || coder.options.bits > 0 || coder.options.steps > 0;
  }

  // The largest integer in a sum; the unit of every tensor.
  static constexpr std::uint32_t kTerms = 40;
  static constexpr float kUnit = 0.5f;

 private:
  using Family = gq::runtime::Family;
  using Options = gq::runtime::Options;

  static gq::Levels uniform(int bits) {
    gq::Levels levels{};
    REQUIRE(gq::uniform_levels(bits, bits > 1, levels));
    return levels;
  }
  static gq::Levels table() {
    const float values[] = {-1, -0.25f, 0, 0.125f, 0.5f, 1};
    gq::Levels levels{};
    REQUIRE(gq::table_levels(3, values, 6, levels));
    return levels;
  }
  static gq::Levels floating(int bits, int mantissa, int lowest, int last, gq::Order order, gq::Scale scale) {
    gq::Levels levels{};
    REQUIRE(gq::floating_levels(bits, mantissa, lowest, last, true, order, levels));
    levels.scale = scale;
    return levels;
  }

  Options& add(Family family) {
    made_.push_back(gq::runtime::coder_of(family));
    families_.push_back(family);
    return made_.back().options;
  }
  void add_levels(const gq::Levels& levels) { add(Family::kLevels).levels = levels; }
  void add_coded(const gq::Levels& levels, gq::Coding coding) {
    Options& options = add(Family::kCodedLevels);
    options.levels = levels;
    options.coding = coding;
  }
  void add_sparse(Family family, const gq::runtime::Coder* values) {
    Options& options = add(family);
    options.k = 3;
    options.selects = gq::runtime::Selects::kLargest;
    options.values = values;
    options.bucket = 5;
  }
  static void set_units(Options& options) {
    options.units = &kUnit;
    options.n_units = 1;
    options.terms = kTerms;
  }

  std::deque<gq::runtime::Coder> made_;  // references to its elements stay valid
  std::vector<Family> families_;
};
