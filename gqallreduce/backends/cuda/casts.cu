// Plain numbers: buffers of 16 and 64 bits to float32 and back, values added and scaled, and the codecs that send each
// value as a number of one format (formats.hpp numbers them).
// Every thread takes four values, then the four that lie one grid further.
#include "block.hpp"
#include "fours.hpp"
#include "gq/formats.hpp"

namespace gq {
namespace device {

struct Float32 {
  using Number = float;

  static float widen(float v) { return v; }
  static float narrow(float v) { return v; }
  static bool finite(float v) { return is_finite(v); }
};

// each(i, count) for the values i ... i + count - 1 of n.
template <class Each>
static inline void by_fours(std::size_t n, Each each) {
  const std::size_t thread = std::size_t(block_index()) * threads_per_block() + thread_index();
  const std::size_t stride = 4 * std::size_t(blocks_per_grid()) * threads_per_block();
  for (std::size_t i = 4 * thread; i < n; i += stride) each(i, n - i < 4 ? n - i : 4);
}

// work(Format()) for the format of this number.
template <class Work>
static inline void with_format(int format, Work work) {
  if (format == 0) return work(Float16());
  if (format == 1) return work(Bfloat16());
  if (format == kFloat32) return work(Float32());
  work(Float64());
}

}  // namespace device
}  // namespace gq

using namespace gq;
using namespace gq::device;

// wire = x + e rounded to the format; r, if given, what the rounding lost.
GQ_KERNEL plain_encode(const float* x, const float* e, float* r, std::uint8_t* wire, std::uint64_t n, int format,
                       std::uint32_t* status) {
  with_format(format, [&](auto kind) {
    using Format = decltype(kind);
    using Number = typename Format::Number;
    bool bad = false;
    by_fours(n, [&](std::size_t i, std::size_t count) {
      const Four<float> v = load_sum(x + i, e ? e + i : e, count);
      Four<Number> sent;
      Four<float> lost;
      for (int k = 0; k < 4; ++k) {
        sent.number[k] = Format::narrow(v.number[k]);
        lost.number[k] = v.number[k] - static_cast<float>(Format::widen(sent.number[k]));
        bad |= !Format::finite(sent.number[k]);
      }
      store_four(wire + i * sizeof(Number), sent, count);
      if (r) store_four(r + i, lost, count);
    });
    report(bad, kNotFinite, status);
  });
}

// y = scale * wire, or y += wire.
GQ_KERNEL plain_decode(const std::uint8_t* wire, float* y, std::uint64_t n, int format, float scale, int add,
                       std::uint32_t* status) {
  with_format(format, [&](auto kind) {
    using Format = decltype(kind);
    using Number = typename Format::Number;
    bool bad = false;
    by_fours(n, [&](std::size_t i, std::size_t count) {
      const Four<Number> sent = load_four<Number>(wire + i * sizeof(Number), count);
      Four<float> v;
      for (int k = 0; k < 4; ++k) {
        bad |= !Format::finite(sent.number[k]);
        v.number[k] = static_cast<float>(Format::widen(sent.number[k]));
        if (!add) v.number[k] *= scale;
      }
      put_four(y + i, v, count, add);
    });
    report(bad, kMalformed, status);
  });
}

// A buffer's values as float32; not finite also where a float64 lies beyond float32.
GQ_KERNEL buffer_widen(const std::uint8_t* source, float* y, std::uint64_t n, int format, std::uint32_t* status) {
  with_format(format, [&](auto kind) {
    using Format = decltype(kind);
    using Number = typename Format::Number;
    bool bad = false;
    by_fours(n, [&](std::size_t i, std::size_t count) {
      const Four<Number> from = load_four<Number>(source + i * sizeof(Number), count);
      Four<float> v;
      for (int k = 0; k < 4; ++k) {
        v.number[k] = Format::widen(from.number[k]);
        bad |= !is_finite(v.number[k]);
      }
      store_four(y + i, v, count);
    });
    report(bad, kNotFinite, status);
  });
}

GQ_KERNEL buffer_narrow(const float* x, std::uint8_t* target, std::uint64_t n, int format, std::uint32_t* status) {
  with_format(format, [&](auto kind) {
    using Format = decltype(kind);
    using Number = typename Format::Number;
    bool bad = false;
    by_fours(n, [&](std::size_t i, std::size_t count) {
      const Four<float> v = load_four<float>(x + i, count);
      Four<Number> to;
      for (int k = 0; k < 4; ++k) {
        to.number[k] = Format::narrow(v.number[k]);
        bad |= !Format::finite(to.number[k]);
      }
      store_four(target + i * sizeof(Number), to, count);
    });
    report(bad, kNotFinite, status);
  });
}

// y = x + e; y may be x.
GQ_KERNEL buffer_add(const float* x, const float* e, float* y, std::uint64_t n, std::uint32_t* status) {
  bool bad = false;
  by_fours(n, [&](std::size_t i, std::size_t count) {
    const Four<float> v = load_sum(x + i, e ? e + i : e, count);
    for (int k = 0; k < 4; ++k) bad |= !is_finite(v.number[k]);
    store_four(y + i, v, count);
  });
  report(bad, kNotFinite, status);
}

// y = x * factor; y may be x.
GQ_KERNEL buffer_scale(const float* x, float factor, float* y, std::uint64_t n, std::uint32_t* status) {
  bool bad = false;
  by_fours(n, [&](std::size_t i, std::size_t count) {
    Four<float> v = load_four<float>(x + i, count);
    for (int k = 0; k < 4; ++k) {
      v.number[k] *= factor;
      bad |= !is_finite(v.number[k]);
    }
    store_four(y + i, v, count);
  });
  report(bad, kNotFinite, status);
}

// y = a - b; y may be a or b.
GQ_KERNEL buffer_subtract(const float* a, const float* b, float* y, std::uint64_t n) {
  by_fours(n, [&](std::size_t i, std::size_t count) {
    Four<float> v = load_four<float>(a + i, count);
    const Four<float> less = load_four<float>(b + i, count);
    for (int k = 0; k < 4; ++k) v.number[k] -= less.number[k];
    store_four(y + i, v, count);
  });
}

// y = x + e in float64, at any address; e may be null, y may be x.
GQ_KERNEL wide_add(const std::uint8_t* x, const float* e, std::uint8_t* y, std::uint64_t n, std::uint32_t* status) {
  bool bad = false;
  by_fours(n, [&](std::size_t i, std::size_t count) {
    Four<double> v = load_four<double>(x + i * sizeof(double), count);
    const Four<float> residual = e ? load_four<float>(e + i, count) : Four<float>{};
    for (int k = 0; k < 4; ++k) {
      if (e) v.number[k] += static_cast<double>(residual.number[k]);
      bad |= !Float64::finite(v.number[k]);
    }
    store_four(y + i * sizeof(double), v, count);
  });
  report(bad, kNotFinite, status);
}

// y = x * factor, or y += x, in float64, at any address; y may be x. Reports `flag` where the result is not finite.
GQ_KERNEL wide_scale(const std::uint8_t* x, std::uint8_t* y, std::uint64_t n, double factor, int add,
                     std::uint32_t flag, std::uint32_t* status) {
  bool bad = false;
  by_fours(n, [&](std::size_t i, std::size_t count) {
    Four<double> v = load_four<double>(x + i * sizeof(double), count);
    const Four<double> before = add ? load_four<double>(y + i * sizeof(double), count) : Four<double>{};
    for (int k = 0; k < 4; ++k) {
      v.number[k] *= factor;
      bad |= !Float64::finite(v.number[k]);
      if (add) v.number[k] = before.number[k] + v.number[k];
    }
    store_four(y + i * sizeof(double), v, count);
  });
  report(bad, flag, status);
}
