// Adaptive quantization (adaptive_wire.hpp says what is sent), with joint signs.
//
// Selection of a whole vector: three histograms of its magnitudes (12, 12 and 7 bits, each among the values that agree
// with the digits found so far) give the threshold; columns then count what they keep, a scan says where each writes
// and how many ties it may keep, in memory order. Selection by columns: each column finds its own threshold, bit by
// bit.
#include "adaptive_parts.hpp"
#include "block.hpp"

using namespace gq;
using namespace gq::device;

// Adds to `table` how many magnitudes that begin with the search's prefix have each next digit; the first time also
// forms v = x + e in r, which may be null. The digit has `width` bits and `shift` bits below it.
GQ_KERNEL adaptive_histogram(const float* x, const float* e, float* r, std::uint64_t n, int shift, int width,
                             const Search* search, std::uint32_t* table, std::uint32_t* status) {
  GQ_SHARED std::uint32_t bins[kBins];
  for (unsigned bin = thread_index(); bin < kBins; bin += threads_per_block()) bins[bin] = 0;
  block_barrier();
  const std::uint32_t prefix = search->prefix;
  bool finite = true;
  const std::size_t stride = 4 * std::size_t(blocks_per_grid()) * threads_per_block();
  for (std::size_t i = 4 * (std::size_t(block_index()) * threads_per_block() + thread_index()); i < n; i += stride) {
    const Four<float> v = load_sum(x + i, e ? e + i : e, n - i);
    if (r) store_four(r + i, v, n - i);
    for (const float number : v.number) {
      const std::uint32_t key = magnitude(number), digits = key >> shift;
      finite &= is_finite(number);
      if (key > 0 && digits >> width == prefix) atomic_add(&bins[digits & ((1u << width) - 1)], 1);
    }
  }
  if (!finite) atomic_or(status, kNotFinite);
  block_barrier();
  for (unsigned bin = thread_index(); bin < kBins; bin += threads_per_block())
    if (bins[bin] > 0) atomic_add(&table[bin], bins[bin]);
}

// Finds the next digit in `table`, which it clears: one block of 128 threads, each with 32 bins.
GQ_KERNEL adaptive_digit(std::uint32_t* table, int width, Search* search) {
  GQ_SHARED std::uint32_t sums[kTeamThreads];
  constexpr unsigned kOwn = kBins / kTeamThreads;
  std::uint32_t* const own = table + thread_index() * kOwn;
  std::uint32_t sum = 0;
  for (unsigned k = 0; k < kOwn; ++k) sum += own[k];
  sums[thread_index()] = sum;
  block_barrier();
  std::uint32_t above = 0, all = 0;  // the values with digits beyond this thread's, and all
  for (unsigned thread = 0; thread < kTeamThreads; ++thread) {
    above += thread > thread_index() ? sums[thread] : 0;
    all += sums[thread];
  }
  const Search before = *search;
  const std::uint32_t left = before.left < all ? before.left : all;
  block_barrier();
  if (all == 0) {
    if (thread_index() == 0) *search = {kNobody, 0};
  } else if (above < left && left <= above + sum) {
    unsigned bin = kOwn;
    while (above + own[bin - 1] < left) above += own[--bin];
    *search = {before.prefix << width | (thread_index() * kOwn + bin - 1), left - above};
  }
  for (unsigned k = 0; k < kOwn; ++k) own[k] = 0;
}

// What each column has above the threshold that `search` found (in `first`), and equal to it (in `ties`).
GQ_KERNEL adaptive_count(const float* v, std::uint64_t n, std::uint64_t start, std::uint64_t run, std::uint64_t parts,
                         const Search* search, std::uint32_t* columns, std::uint64_t count, unsigned teams) {
  GQ_SHARED Shared shared;
  const TeamUnit unit({start, run, parts}, n, teams);
  if (!unit.exists) return;
  Team team(shared, teams);
  const std::uint32_t threshold = search->prefix;
  std::uint32_t above = 0, equal = 0;
  for (std::size_t i = 4 * team.rank; i < unit.height(); i += 4 * team.size)
    for (const float number : load_four<float>(v + unit.begin + i, unit.height() - i).number) {
      above += magnitude(number) > threshold;
      equal += magnitude(number) == threshold;
    }
  above = team.sum(above);
  equal = team.sum(equal);
  const Kept kept = kept_columns(columns, count);
  if (!team.leads()) return;
  kept.threshold[unit.number] = threshold;
  kept.ties[unit.number] = equal;
  kept.first[unit.number] = above;
}

// Gives the search's ties away in order, and turns counts into the numbers of first entries: one block of 1024 threads,
// each with its share of the columns.
GQ_KERNEL adaptive_scan(Search* search, std::uint32_t* columns, std::uint64_t count) {
  GQ_SHARED std::uint32_t equal_of[kScanThreads], kept_of[kScanThreads];
  const unsigned thread = thread_index();
  const Kept kept = kept_columns(columns, count);
  const std::size_t begin = count * thread / kScanThreads, end = count * (thread + 1) / kScanThreads;
  std::uint32_t equal = 0, all = 0;
  for (std::size_t column = begin; column < end; ++column) equal += kept.ties[column];
  equal_of[thread] = equal;
  block_barrier();
  std::uint32_t given = 0;
  for (unsigned before = 0; before < thread; ++before) given += equal_of[before];
  std::uint32_t left = search->left > given ? search->left - given : 0;
  for (std::size_t column = begin; column < end; ++column) {
    const std::uint32_t ties = kept.ties[column] < left ? kept.ties[column] : left;
    left -= ties;
    kept.ties[column] = ties;
    all += kept.first[column] + ties;
  }
  kept_of[thread] = all;
  block_barrier();
  std::uint32_t first = 0;
  for (unsigned before = 0; before < thread; ++before) first += kept_of[before];
  for (std::size_t column = begin; column < end; ++column) {
    const std::uint32_t here = kept.first[column] + kept.ties[column];
    kept.first[column] = first;
    first += here;
  }
  if (thread + 1 < kScanThreads) return;
  kept.first[count] = first;
  search->left = left;  // for the next region of the vector
}

// Selects the largest of each column, one value in pi; what adaptive_count says of a whole vector. Forms v in r.
GQ_KERNEL adaptive_select(const float* x, const float* e, float* r, std::uint64_t n, std::uint64_t start,
                          std::uint64_t run, std::uint64_t parts, std::uint64_t pi, std::uint32_t* columns,
                          std::uint64_t count, unsigned teams, std::uint32_t* status) {
  GQ_SHARED Shared shared;
  const TeamUnit unit({start, run, parts}, n, teams);
  if (!unit.exists) return;
  Team team(shared, teams);
  const std::size_t height = unit.height(), begin = unit.begin;
  if (!write_formed(team, x + begin, e ? e + begin : e, r ? r + begin : r, height)) atomic_or(status, kNotFinite);
  team.sync();
  const float* const v = r ? r + begin : x + begin;
  if (height <= team.capacity) team.stage(v, nullptr, height);
  const std::uint32_t nonzero = count_reaching(team, v, height, 1);
  const std::size_t share = share_of(height, pi);
  const std::uint32_t k = nonzero < share ? nonzero : static_cast<std::uint32_t>(share);
  const std::uint32_t threshold = k > 0 ? kth_of_column(team, v, height, k) : kNobody;
  const std::uint32_t above = k > 0 ? count_reaching(team, v, height, threshold + 1) : 0;
  if (!team.leads()) return;
  const Kept kept = kept_columns(columns, count);
  kept.threshold[unit.number] = threshold;
  kept.ties[unit.number] = k - above;
  kept.first[unit.number] = above;
}

// Writes the message of the kept values of v. Where errors are kept v is r, and becomes the error.
GQ_KERNEL adaptive_encode(const float* v, float* r, std::uint8_t* wire, std::uint64_t n, std::uint64_t start,
                          std::uint64_t run, std::uint64_t parts, std::uint32_t* columns, std::uint64_t count,
                          unsigned teams) {
  GQ_SHARED Shared shared;
  const TeamUnit unit({start, run, parts}, n, teams);
  if (!unit.exists) return;
  Team team(shared, teams);
  const Kept kept = kept_columns(columns, count);
  const std::uint32_t first = kept.first[unit.number], entries_here = kept.first[unit.number + 1] - first;
  std::uint8_t* const entries = wire + headers_nbytes(count) + first * kEntry;
  const Means means =
      write_entries(team, v + unit.begin, unit.height(), kept.threshold[unit.number], kept.ties[unit.number], entries);
  if (team.leads()) {
    std::uint8_t* const header = wire + unit.number * kColumnHeader;
    store(header, first);
    store(header + 4, means.mean[1]);
    store(header + 8, means.mean[0]);
    if (unit.number + 1 == count) store(header + kColumnHeader, kept.first[count]);
  }
  if (!r) return;
  for (std::size_t i = team.rank; i < entries_here; i += team.size) {
    const std::uint16_t entry = load<std::uint16_t>(entries + i * kEntry);
    r[unit.begin + (entry >> 1)] -= entry & 1 ? means.mean[1] : means.mean[0];
  }
}

// Are the offsets of a message of `count` columns lawful, and does it end within nbytes? To be run before decoding.
GQ_KERNEL adaptive_check(const std::uint8_t* wire, std::uint64_t nbytes, std::uint64_t count, std::uint32_t* status) {
  const std::size_t stride = std::size_t(blocks_per_grid()) * threads_per_block();
  bool bad = entry_offset(wire, 0) != 0 || headers_nbytes(count) + entry_offset(wire, count) * kEntry > nbytes;
  for (std::size_t i = std::size_t(block_index()) * threads_per_block() + thread_index(); i < count; i += stride)
    bad |= entry_offset(wire, i) > entry_offset(wire, i + 1);
  if (bad) atomic_or(status, kMalformed);
}

// y = scale * wire, or y += wire, unless adaptive_check found a fault.
GQ_KERNEL adaptive_decode(const std::uint8_t* wire, float* y, std::uint64_t n, std::uint64_t start, std::uint64_t run,
                          std::uint64_t parts, std::uint64_t count, float scale, int add, unsigned teams,
                          std::uint32_t* status) {
  GQ_SHARED Shared shared;
  const TeamUnit unit({start, run, parts}, n, teams);
  if (!unit.exists) return;
  Team team(shared, teams);
  if (team.tell(*status) & kMalformed) return;
  const std::uint8_t* const header = wire + unit.number * kColumnHeader;
  const std::size_t first = entry_offset(wire, unit.number), here = entry_offset(wire, unit.number + 1) - first;
  const std::uint8_t* const entries = wire + headers_nbytes(count) + first * kEntry;
  const float positive = load<float>(header + 4), negative = load<float>(header + 8);
  if (!lawful(team, entries, here, unit.height()) || !is_finite(positive) || !is_finite(negative)) {
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
