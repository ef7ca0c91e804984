#include "gq/buckets.hpp"

#include "gq/grid.hpp"
#include "gq/strips.hpp"

namespace gq {

Buckets::Buckets(const Levels& levels, std::uint64_t key, const Grid& grid, std::size_t n)
    : levels_(levels), key_(key) {
  if (as_they_are()) return;
  strip_ = strip_values(grid, n);
  values_.reset(new (std::nothrow) float[2 * strip_]);
}

bool Buckets::good_scales(const std::uint8_t* wire, std::size_t n, const Grid& grid) const {
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    if (!is_rotated_scale(scale_from(levels_, wire), levels_.reach, unit.height())) return false;
    wire += scale_size(levels_) + packed_size(unit.height(), levels_.bits);
  }
  return true;
}

// Writes a scale's product with along / squares < 1, or with the power of two from 2/3 to 4/3 of that.
void Buckets::shrink(std::uint8_t* scale, double along, double squares) const {
  const double factor = along > 0 ? along / squares : 0.0;
  if (levels_.scale == Scale::kNorm) return store(scale, static_cast<float>(factor * double(load<float>(scale))));
  for (double power = 1; power > factor * 4 / 3 && *scale > 0; power /= 2) --*scale;
}

// Makes the scale of each bucket the one whose error |v - scale * level|^2 is the least, if that is smaller than it
// was. `sent` is room for what they decode to.
void Buckets::contract(const float* v, float* sent, std::uint8_t* wire, std::size_t n, const Grid& grid) const {
  kernels().levels_decode(wire, levels_offset(grid, n, unit_count(grid, n), levels_), sent, n, levels_, grid, 1.0f,
                          false);
  for (Units unit(grid, n); unit.inside(); unit.advance()) {
    const float* const q = sent + unit.begin;
    const double along = kernels().inner_product(v + unit.begin, q, unit.height());
    const double squares = kernels().inner_product(q, q, unit.height());
    if (along < squares) shrink(wire, along, squares);
    wire += scale_size(levels_) + packed_size(unit.height(), levels_.bits);
  }
}

int Buckets::encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::size_t n, bool l2,
                    const Grid& grid, const Stream& stream) const {
  if (as_they_are()) return kernels().levels_encode(x, e, r, wire, n, levels_, l2, grid, stream);
  return by_strips(n, grid, [&](std::size_t begin, std::size_t size, const Grid& strip) {
    const float *const from = x + begin, *const error = e ? e + begin : nullptr;
    float *const v = values_.get(), *const sent = v + strip_, *const lost = r ? r + begin : nullptr;
    const std::size_t nbytes = levels_offset(strip, size, unit_count(strip, size), levels_);
    kernels().add_finite(from, error, reinterpret_cast<std::uint8_t*>(v), size);
    if (levels_.rotated) kernels().rotate(v, v, size, strip, key_, kRotationRounds, false);
    // Where the error is kept this refuses norms whose error might be too large; of rotated values good_scales does.
    float* const error_of_codes = levels_.rotated ? nullptr : lost;
    if (kernels().levels_encode(v, nullptr, error_of_codes, wire, size, levels_, l2, strip, stream)) return 1;
    if (levels_.rotated && !good_scales(wire, size, strip)) return 1;
    if (levels_.contracted) contract(v, sent, wire, size, strip);
    if (lost) {
      kernels().levels_decode(wire, nbytes, sent, size, levels_, strip, 1.0f, false);
      if (levels_.rotated) {
        kernels().rotate(sent, sent, size, strip, key_, kRotationRounds, true);
        kernels().add_finite(from, error, reinterpret_cast<std::uint8_t*>(v), size);
      }
      for (std::size_t i = 0; i < size; ++i) lost[i] = v[i] - sent[i];
    }
    wire += nbytes;
    return 0;
  });
}

int Buckets::decode(const std::uint8_t* wire, std::size_t nbytes, float* y, std::size_t n, const Grid& grid,
                    float scale, bool add) const {
  if (!levels_.rotated) return kernels().levels_decode(wire, nbytes, y, n, levels_, grid, scale, add);
  if (nbytes != levels_offset(grid, n, unit_count(grid, n), levels_)) return 1;
  return by_strips(n, grid, [&](std::size_t begin, std::size_t size, const Grid& strip) {
    float* const v = values_.get();
    const std::size_t used = levels_offset(strip, size, unit_count(strip, size), levels_);
    if (!good_scales(wire, size, strip)) return 1;
    if (kernels().levels_decode(wire, used, v, size, levels_, strip, 1.0f, false)) return 1;
    kernels().rotate(v, v, size, strip, key_, kRotationRounds, true);
    for (std::size_t i = 0; i < size; ++i) y[begin + i] = add ? y[begin + i] + v[i] : v[i] * scale;
    wire += used;
    return 0;
  });
}

}  // namespace gq
