// Adaptive quantization (Dryden 2016) of the kept values of a region: the format of adaptive_wire.hpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gq/adaptive_wire.hpp"
#include "gq/grid.hpp"
#include "gq/sink.hpp"
#include "gq/sum.hpp"
#include "gq/wire.hpp"

namespace gq {
namespace GQ_NAMESPACE {

constexpr std::size_t kFetchAhead = 64;  // entries whose scattered cache lines are under way

// The means of the kept values v <= 0 and v > 0 of a column: mean[v > 0].
struct KeptMeans {
  float mean[2];
};

// The sum rule over kept values only: the lane of a value is its row mod 32, its block its row / 4096.
static KeptMeans kept_means(const std::uint32_t* index, const float* value, std::size_t count, std::size_t begin) {
  double sum[2] = {0.0, 0.0};
  std::size_t counts[2] = {0, 0};
  for (std::size_t i = 0; i < count;) {
    const std::size_t block_end = begin + ((index[i] - begin) / kSumBlock + 1) * kSumBlock;
    alignas(64) double lanes[2][kSumLanes] = {};
    for (; i < count && index[i] < block_end; ++i) {
      const bool positive = value[i] > 0.0f;
      lanes[positive][(index[i] - begin) % kSumLanes] += value[i];
      ++counts[positive];
    }
    for (int side = 0; side < 2; ++side) sum[side] += fold(load<Lanes>(lanes[side]));
  }
  KeptMeans means = {};
  for (int side = 0; side < 2; ++side)
    if (counts[side]) means.mean[side] = static_cast<float>(sum[side] / static_cast<double>(counts[side]));
  return means;
}

// A column with one kept value needs no lanes.
static inline KeptMeans kept_means_of_few(const std::uint32_t* index, const float* value, std::size_t count,
                                          std::size_t begin) {
  if (count > 1) return kept_means(index, value, count, begin);
  KeptMeans means = {};
  if (count == 1) means.mean[value[0] > 0.0f] = value[0];
  return means;
}

// Writes the message of the kept (index, value), index ascending and relative to the region; r, which holds v, becomes
// the error. Returns the bytes, or -1 if a value is not finite.
static std::int64_t adaptive_encode(const std::uint32_t* index, const float* value, std::size_t count, float* r,
                                    std::uint8_t* wire, std::size_t n, const Grid& grid) {
  const std::size_t columns = unit_count(grid, n);
  std::uint8_t* header = wire;
  std::uint8_t* entry = wire + headers_nbytes(columns);
  std::size_t first = 0;
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    std::size_t last = first;
    while (last < count && index[last] < unit.end) ++last;
    const KeptMeans means = kept_means_of_few(index + first, value + first, last - first, unit.begin);
    if (!is_finite(means.mean[0]) || !is_finite(means.mean[1])) return -1;
    store(header, static_cast<std::uint32_t>(first));
    store(header + 4, means.mean[1]);
    store(header + 8, means.mean[0]);
    header += kColumnHeader;
    for (; first < last; ++first, entry += kEntry) {
      const bool positive = value[first] > 0.0f;
      store(entry, static_cast<std::uint16_t>((index[first] - unit.begin) << 1 | positive));
      if (r) {
        if (first + kFetchAhead < count) __builtin_prefetch(r + index[first + kFetchAhead], 1);
        r[index[first]] = value[first] - means.mean[positive];
      }
    }
  }
  store(header, static_cast<std::uint32_t>(first));
  return entry - wire;
}

// The bytes of the message that begins at `wire`, or -1 if its offsets are malformed or it does not end within nbytes.
static std::int64_t adaptive_nbytes(const std::uint8_t* wire, std::size_t nbytes, std::size_t columns) {
  if (nbytes < headers_nbytes(columns) || entry_offset(wire, 0) != 0) return -1;
  for (std::size_t column = 0; column < columns; ++column)
    if (entry_offset(wire, column) > entry_offset(wire, column + 1)) return -1;
  const std::size_t total = headers_nbytes(columns) + entry_offset(wire, columns) * kEntry;
  return total > nbytes ? -1 : static_cast<std::int64_t>(total);
}

// Rows strictly ascending and below the height?
static inline bool lawful_rows(const std::uint8_t* entries, std::size_t count, std::size_t height) {
  if (count == 0) return true;
  unsigned bad = load<std::uint16_t>(entries + (count - 1) * kEntry) >> 1 >= height;
  for (std::size_t i = 1; i < count; ++i) {
    const std::uint16_t row = load<std::uint16_t>(entries + i * kEntry) >> 1;
    const std::uint16_t before = load<std::uint16_t>(entries + (i - 1) * kEntry) >> 1;
    bad |= row <= before;
  }
  return !bad;
}

// The entries of one column, and with which means they go where.
struct Column {
  const std::uint8_t* entries;
  std::size_t count;
  float mean[2];
  std::size_t begin, end;
};

// The column that unit `number` of the message is, its means times scale, once it has been checked; false if it is
// malformed.
static inline bool read_column(const std::uint8_t* wire, std::size_t columns, std::size_t number, const Units& unit,
                               float scale, Column& column) {
  const std::size_t first = entry_offset(wire, number), count = entry_offset(wire, number + 1) - first;
  const std::uint8_t* header = wire + number * kColumnHeader;
  const float positive = load<float>(header + 4), negative = load<float>(header + 8);
  column = {wire + headers_nbytes(columns) + first * kEntry,
            count,
            {negative * scale, positive * scale},
            unit.begin,
            unit.end};
  return is_finite(positive) && is_finite(negative) && lawful_rows(column.entries, count, unit.height());
}

// Overwrites the column block by block, zeros first.
static inline void write_column(const Column& column, Sink& values) {
  std::size_t i = 0;
  for (std::size_t begin = column.begin; begin < column.end; begin += Sink::kBlock) {
    const std::size_t height = column.end - begin < Sink::kBlock ? column.end - begin : Sink::kBlock;
    const std::size_t first_row = begin - column.begin;
    float* y = values.at(begin, height);
    std::memset(y, 0, height * sizeof(float));
    for (; i < column.count; ++i) {
      const std::uint16_t entry = load<std::uint16_t>(column.entries + i * kEntry);
      if ((entry >> 1) - first_row >= height) break;
      y[(entry >> 1) - first_row] = column.mean[entry & 1];
    }
  }
}

static inline void add_column(const Column& column, float* y) {
  for (std::size_t i = 0; i < column.count; ++i) {
    const std::uint16_t entry = load<std::uint16_t>(column.entries + i * kEntry);
    y[column.begin + (entry >> 1)] += column.mean[entry & 1];
  }
}

static inline void fetch_column(const Column& column, float* y) {
  for (std::size_t i = 0; i < column.count; ++i)
    __builtin_prefetch(y + column.begin + (load<std::uint16_t>(column.entries + i * kEntry) >> 1), 1);
}

// Decodes n elements, whole columns from `first_column` of the message on, whose offsets adaptive_nbytes has checked.
// A column is checked before it is written; returns 1 if it is malformed.
static int adaptive_decode(const std::uint8_t* wire, std::size_t columns, std::size_t first_column, float* y,
                           std::size_t n, const Grid& grid, float scale, bool streaming) {
  Sink values(y, streaming);
  Column column;
  for (Units unit(grid, n); unit.inside(); unit.advance(), ++first_column) {
    if (!read_column(wire, columns, first_column, unit, scale, column)) return 1;
    write_column(column, values);
  }
  return 0;
}

// As adaptive_decode, but adds. That touches scattered cache lines, which are fetched one column ahead.
static int adaptive_decode_add(const std::uint8_t* wire, std::size_t columns, std::size_t first_column, float* y,
                               std::size_t n, const Grid& grid) {
  Column before = {}, column;
  for (Units unit(grid, n); unit.inside(); unit.advance(), ++first_column) {
    if (!read_column(wire, columns, first_column, unit, 1.0f, column)) return 1;
    fetch_column(column, y);
    add_column(before, y);
    before = column;
  }
  add_column(before, y);
  return 0;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
