// What every wrapper puts around a kernel: one floating-point environment, and the number of threads.
#pragma once
#include <xmmintrin.h>

namespace gq {

// Rounds to nearest, keeps denormals and masks exceptions while it lives, whatever the caller had set. The control
// word belongs to a thread, so a parallel region takes a guard inside.
class FloatGuard {
 public:
  FloatGuard() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~FloatGuard() { _mm_setcsr(saved_); }
  FloatGuard(const FloatGuard&) = delete;
  FloatGuard& operator=(const FloatGuard&) = delete;

 private:
  unsigned int saved_;
};

int threads();            // how many threads one call may use
void set_threads(int n);  // less than 1 means 1

}  // namespace gq
