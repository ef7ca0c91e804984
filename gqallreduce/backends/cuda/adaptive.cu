// Adaptive quantization (adaptive_wire.hpp says what is sent), by spans: a team of threads for each unit, whatever the
// region it is in.
//
// Selection of a whole vector: three histograms of its magnitudes (12, 12 and 7 bits, each among the values that agree
// with the digits found so far) give the threshold of each side; columns then count what they keep, a scan says where
// each writes and how many ties it may keep, in memory order. The second histogram lists the values that agree with the
// first digit, a few in a hundred as a rule; the third and the counting go by these lists. Selection by columns: each
// column finds its own thresholds, bit by bit.
#include "adaptive_parts.hpp"
#include "adaptive_select.hpp"
#include "block.hpp"
#include "scan.hpp"

using namespace gq;
using namespace gq::device;

// Adds to `table` how many magnitudes of each side have each first digit, which has `shift` bits below it, and forms
// v = x + e in r, which may be null.
GQ_KERNEL GQ_THREADS(kHistogramThreads, 3)
    adaptive_histogram(const float* x, const float* e, float* r, std::uint64_t n, int shift, unsigned sides,
                       std::uint32_t* table, std::uint32_t* status) {
  GQ_SHARED std::uint32_t bins[2 * kBins];
  clear_bins(bins, kBins, sides);
  bool finite = true;
  const std::size_t stride = 4 * std::size_t(blocks_per_grid()) * threads_per_block();
  for (std::size_t i = 4 * (std::size_t(block_index()) * threads_per_block() + thread_index()); i < n;
       i += kAtOnce * stride) {
    Four<float> v[kAtOnce];
    GQ_UNROLL
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const std::size_t at = i + k * stride;
      v[k] = at < n ? load_sum(x + at, e ? e + at : e, n - at) : Four<float>{};
    }
    GQ_UNROLL
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const std::size_t at = i + k * stride;
      if (r && at < n) store_four(r + at, v[k], n - at);
      for (const float number : v[k].number) {
        finite &= is_finite(number);
        if (magnitude(number) > 0) atomic_add(&bins[side_of(number, sides) * kBins + (magnitude(number) >> shift)], 1);
      }
    }
  }
  if (!finite) atomic_or(status, kNotFinite);
  add_bins(bins, kBins, sides, table);
}

// The same of the second digit, of `width` bits, among the values that begin with the search's prefix. Of each unit:
// how many lie above (in `threshold`), and how many begin so (in `ties`), of which as many are listed as there is room
// for. A warp for each unit.
GQ_KERNEL GQ_THREADS(kHistogramThreads)
    adaptive_sift(const float* v, std::uint64_t start, std::uint64_t run, std::uint64_t parts, const RegionRow* regions,
                  std::uint64_t count, int shift, int width, const Search* search, std::uint32_t* threshold,
                  std::uint32_t* ties, float* listed, unsigned sides, std::uint32_t* table) {
  GQ_SHARED std::uint32_t bins[2 * kBins];
  clear_bins(bins, kBins, sides);
  const Pair prefix = search->prefix;
  const std::uint32_t earlier = (1u << lane_index()) - 1;
  for (std::size_t number = warp_number(); number < regions[count].first; number += warps_of_grid()) {
    const SpanUnit unit({start, run, parts}, regions, count, number);
    const List list(listed, unit);
    const unsigned height = static_cast<unsigned>(unit.height());
    std::uint32_t above = 0, found = 0;
    for (unsigned row = 0; row < height; row += kAtOnce * 4 * kWarp) {
      Four<float> four[kAtOnce];
      GQ_UNROLL
      for (unsigned k = 0; k < kAtOnce; ++k) {
        const unsigned i = row + 4 * (k * kWarp + lane_index());
        four[k] = four_of(v + unit.begin, i, height);
      }
      GQ_UNROLL
      for (unsigned k = 0; k < kAtOnce * 4; ++k) {
        const float one = four[k / 4].number[k % 4];
        const std::uint32_t digits = magnitude(one) >> shift;
        const bool side = side_of(one, sides), agrees = magnitude(one) > 0 && digits >> width == prefix[side];
        above += digits >> width > prefix[side];
        const std::uint32_t all = device::ballot(agrees);
        if (agrees) {
          atomic_add(&bins[side * kBins + (digits & ((1u << width) - 1))], 1);
          list.put(found + count_bits(all & earlier), one);
        }
        found += count_bits(all);
      }
    }
    above = warp_sum(above);
    if (lane_index() > 0) continue;
    threshold[number * sides] = above;
    ties[number * sides] = found;
  }
  add_bins(bins, kBins, sides, table);
}

// The same of the last digit, of values that are listed.
GQ_KERNEL adaptive_refine(const float* v, std::uint64_t start, std::uint64_t run, std::uint64_t parts,
                          const RegionRow* regions, std::uint64_t count, int width, const Search* search,
                          const std::uint32_t* ties, const float* listed, unsigned sides, std::uint32_t* table) {
  GQ_SHARED std::uint32_t bins[2 * kLastBins];
  clear_bins(bins, kLastBins, sides);
  const Pair prefix = search->prefix;
  for (std::size_t number = warp_number(); number < regions[count].first; number += warps_of_grid()) {
    const SpanUnit unit({start, run, parts}, regions, count, number);
    const Listed those(listed, unit, ties[number * sides], v);
    for (std::size_t i = lane_index(); i < those.n; i += kWarp) {
      const std::uint32_t digits = magnitude(those.v[i]);
      const bool side = side_of(those.v[i], sides);
      if (digits > 0 && digits >> width == prefix[side])
        atomic_add(&bins[side * kLastBins + (digits & ((1u << width) - 1))], 1);
    }
  }
  add_bins(bins, kLastBins, sides, table);
}

// Finds the next digits in `table`, which it clears; k > 0 begins a search for k values. One block of 1024 threads.
GQ_KERNEL GQ_THREADS(kScanThreads)
    adaptive_digit(std::uint32_t* table, int width, std::uint32_t k, unsigned sides, Search* search) {
  GQ_SHARED ScanWords words;
  constexpr unsigned kOwn = kBins / kScanThreads;
  std::uint32_t* const bins = table + thread_index() * kOwn;
  Pair own = {0, 0};
  for (unsigned bin = 0; bin < kOwn; ++bin) {
    own.zero += bins[bin];
    own.one += sides == 2 ? bins[kBins + bin] : 0;
  }
  std::uint64_t total;
  const std::uint64_t before = scan_block(words, packed(own), total);
  if (k > 0) {
    if (thread_index() == 0) *search = begun_search(wanted_of(unpacked(total), k, sides));
    block_barrier();
  }
  const Pair prefix = search->prefix, left = search->left;
  block_barrier();
  const Pair beyond = unpacked(total - before - packed(own));
  for (unsigned side = 0; side < sides; ++side) {
    std::uint32_t* const mine = bins + side * kBins;
    std::uint32_t above = beyond[side];
    if (above < left[side] && left[side] <= above + own[side]) {
      unsigned bin = kOwn;
      while (above + mine[bin - 1] < left[side]) above += mine[--bin];
      const std::uint32_t found = prefix[side] << width | (thread_index() * kOwn + bin - 1);
      (side ? search->prefix.one : search->prefix.zero) = found;
      (side ? search->left.one : search->left.zero) = left[side] - above;
    }
    for (unsigned bin = 0; bin < kOwn; ++bin) mine[bin] = 0;
  }
}

// The thresholds that `search` found, and what each unit has above them (in `first`) and equal to them (in `ties`),
// from what adaptive_sift has left. A warp for each unit.
GQ_KERNEL adaptive_count(const float* v, std::uint64_t start, std::uint64_t run, std::uint64_t parts,
                         const RegionRow* regions, std::uint64_t count, const Search* search, std::uint32_t* threshold,
                         std::uint32_t* ties, std::uint32_t* first, const float* listed, unsigned sides) {
  const SpanUnit unit({start, run, parts}, regions, count, warp_number());
  if (!unit.exists) return;
  const Listed those(listed, unit, ties[unit.number * sides], v);
  const Pair bound = search->prefix;
  std::uint32_t above = 0, equal = 0;  // equal: in halves
  for (std::size_t i = lane_index(); i < those.n; i += kWarp) {
    const std::uint32_t key = magnitude(those.v[i]);
    const bool side = side_of(those.v[i], sides);
    above += key > bound[side];
    equal += (key == bound[side]) << 16 * side;
  }
  above = warp_sum(above);
  equal = warp_sum(equal);
  warp_barrier();  // all have read what was left
  if (lane_index() > 0) return;
  first[unit.number] = those.all ? above : threshold[unit.number * sides] + above;
  store_pair(threshold, unit.number, sides, bound);
  store_pair(ties, unit.number, sides, of_halves(equal));
}

// Selects the largest of each column, one value in pi; what adaptive_count says of a whole vector. Forms v in r.
GQ_KERNEL adaptive_select(const float* x, const float* e, float* r, std::uint64_t start, std::uint64_t run,
                          std::uint64_t parts, const RegionRow* regions, std::uint64_t count, std::uint64_t pi,
                          std::uint32_t* threshold, std::uint32_t* ties, std::uint32_t* first, unsigned sides,
                          unsigned teams, std::uint32_t* status) {
  GQ_SHARED Shared shared;
  const SpanUnit unit({start, run, parts}, regions, count, team_number(teams));
  if (!unit.exists) return;
  Team team(shared, teams);
  const std::size_t height = unit.height(), begin = unit.begin;
  if (!write_formed(team, x + begin, e ? e + begin : e, r ? r + begin : r, height)) atomic_or(status, kNotFinite);
  team.sync();
  const float* const v = r ? r + begin : x + begin;
  Cut cut;
  if (height <= team.capacity) {
    team.stage(v, nullptr, height);
    cut = cut_column(team, StagedValues(team, height, sides), share_of(height, pi));
  } else {
    cut = cut_column(team, ColumnValues{v, height, sides}, share_of(height, pi));
  }
  if (!team.leads()) return;
  store_pair(threshold, unit.number, sides, cut.threshold);
  store_pair(ties, unit.number, sides, cut.ties);
  first[unit.number] = cut.above;
}

// Gives the search's ties away in order (without a search all stay), and turns counts into the numbers of first
// entries. One block of 1024 threads; it looks into v only where two ties of one unit are contested.
GQ_KERNEL GQ_THREADS(kScanThreads)
    adaptive_scan(const float* v, std::uint64_t start, std::uint64_t run, std::uint64_t parts, const RegionRow* regions,
                  std::uint64_t count, Search* search, std::uint32_t* ties, std::uint32_t* first, unsigned sides) {
  GQ_SHARED ScanShared shared;
  const std::size_t units = regions[count].first;
  Search state = search ? *search : Search{{0, 0}, {kUnreachable, kUnreachable}, false, 0};
  if (state.contested && state.prefix.zero != state.prefix.one) {
    settle(state.left, state.prefix.zero > state.prefix.one);
    state.contested = false;
  }
  for (std::size_t base = 0; base < units; base += kUnitsAtOnce) {
    const auto unit_at = [&](unsigned k) { return SpanUnit({start, run, parts}, regions, count, base + k); };
    const std::size_t begin = base + thread_index() * kOwnUnits;
    std::uint32_t equal[kOwnUnits], all = 0;
    std::uint64_t here = 0, total, entries;
    OwnPairs own = OwnPairs::load(ties, begin, units, sides);
    Four<std::uint32_t> kept = four_of(first, begin, units);
    GQ_UNROLL
    for (unsigned k = 0; k < kOwnUnits; ++k) {
      equal[k] = own.zero.number[k] | own.one.number[k] << 16;
      here += packed({own.zero.number[k], own.one.number[k]});
    }
    std::uint64_t before = scan_block(shared.words, here, total);
    if (state.contested) settle_by_place(shared, v, state, equal, before, total, unit_at);
    GQ_UNROLL
    for (unsigned k = 0; k < kOwnUnits; ++k) {
      const Pair given = given_of(state.left, unpacked(before), of_halves(equal[k]));
      before += packed(of_halves(equal[k]));
      own.zero.number[k] = given.zero;
      own.one.number[k] = given.one;
      kept.number[k] += given.zero + given.one;
      all += kept.number[k];
    }
    own.store(ties, begin, units, sides);
    state.left = remaining(state.left, unpacked(total));
    std::uint32_t number = state.entries + static_cast<std::uint32_t>(scan_block(shared.words, all, entries));
    GQ_UNROLL
    for (unsigned k = 0; k < kOwnUnits; ++k) {
      const std::uint32_t those = kept.number[k];
      kept.number[k] = number;
      number += those;
    }
    OwnPairs::put_own(first, begin, units, kept);
    state.entries += static_cast<std::uint32_t>(entries);
  }
  if (thread_index() > 0) return;
  first[units] = state.entries;
  if (search) *search = state;  // for the next part of the vector
}

// Writes the messages of the kept values of v, and how long they are together, a warp for each unit. Where errors are
// kept v is r, and becomes the error.
GQ_KERNEL adaptive_encode(const float* v, float* r, std::uint8_t* wire, std::uint64_t start, std::uint64_t run,
                          std::uint64_t parts, const RegionRow* regions, std::uint64_t count,
                          const std::uint32_t* threshold, const std::uint32_t* ties, const std::uint32_t* first,
                          unsigned sides, std::uint64_t* length, std::uint32_t* status) {
  write_totals(wire, regions, count, first, length);
  const SpanUnit unit({start, run, parts}, regions, count, warp_number());
  if (!unit.exists) return;
  std::uint8_t* const message = wire + message_begin(regions, unit.region, first);
  const std::uint32_t before = first[unit.number] - first[unit.number - unit.inside];
  std::uint8_t* const entries = message + headers_nbytes(unit.siblings) + before * kEntry;
  const Means means = write_entries(v + unit.begin, unit.height(), load_pair(threshold, unit.number, sides),
                                    load_pair(ties, unit.number, sides), sides, entries, status);
  if (lane_index() == 0) {
    std::uint8_t* const header = message + unit.inside * kColumnHeader;
    store(header, before);
    store(header + 4, means.mean[1]);
    store(header + 8, means.mean[0]);
  }
  if (!r) return;
  warp_barrier();  // the entries are there
  const std::uint32_t entries_here = first[unit.number + 1] - first[unit.number];
  for (std::size_t i = lane_index(); i < entries_here; i += kWarp) {
    const std::uint16_t entry = load<std::uint16_t>(entries + i * kEntry);
    r[unit.begin + (entry >> 1)] -= entry & 1 ? means.mean[1] : means.mean[0];
  }
}

// Where each region's message begins, if they are nbytes long exactly; to be run before decoding, by one thread.
GQ_KERNEL adaptive_walk(const std::uint8_t* wire, std::uint64_t nbytes, const RegionRow* regions, std::uint64_t count,
                        std::uint64_t* where, std::uint32_t* status) {
  if (thread_index() > 0) return;
  std::uint64_t begin = 0;
  for (std::size_t region = 0; region < count && begin <= nbytes; ++region) {
    where[region] = begin;
    const std::size_t units = regions[region + 1].first - regions[region].first;
    const std::uint64_t entries = begin + headers_nbytes(units);
    const std::size_t total = entries <= nbytes ? entry_offset(wire + begin, units) : 0;
    begin = units == 0 && total > 0 ? nbytes + 1 : entries + total * kEntry;
  }
  where[count] = begin;
  if (begin != nbytes) atomic_or(status, kMalformed);
}

// y = scale * wire, or y += wire, unless adaptive_walk found a fault.
GQ_KERNEL adaptive_decode(const std::uint8_t* wire, float* y, std::uint64_t start, std::uint64_t run,
                          std::uint64_t parts, const RegionRow* regions, std::uint64_t count,
                          const std::uint64_t* where, float scale, int add, unsigned teams, std::uint32_t* status) {
  GQ_SHARED Shared shared;
  const SpanUnit unit({start, run, parts}, regions, count, team_number(teams));
  if (!unit.exists) return;
  Team team(shared, teams);
  if (team.tell(*status) & kMalformed) return;
  const std::uint8_t* const message = wire + where[unit.region];
  const std::uint8_t* const header = message + unit.inside * kColumnHeader;
  const std::size_t first = entry_offset(header, 0), next = entry_offset(header, 1), here = next - first;
  const std::uint8_t* const entries = message + headers_nbytes(unit.siblings) + first * kEntry;
  const float positive = load<float>(header + 4), negative = load<float>(header + 8);
  const bool ascends = first <= next && next <= entry_offset(message, unit.siblings) && (unit.inside > 0 || first == 0);
  if (!ascends || !is_finite(positive) || !is_finite(negative) || !lawful(team, entries, here, unit.height())) {
    if (team.leads()) atomic_or(status, kMalformed);
    return;
  }
  y += unit.begin;
  if (!add)
    for (std::size_t i = 4 * team.rank; i < unit.height(); i += 4 * team.size)
      store_four(y + i, Four<float>{}, unit.height() - i);
  team.sync();
  for (std::size_t i = team.rank; i < here; i += team.size) {
    const std::uint16_t entry = load<std::uint16_t>(entries + i * kEntry);
    const float mean = entry & 1 ? positive : negative;
    y[entry >> 1] = add ? y[entry >> 1] + mean : mean * scale;
  }
}
