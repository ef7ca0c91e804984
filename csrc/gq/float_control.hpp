// The floating-point environment of a thread: how it rounds, and what it does with denormals.
#pragma once
#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#error "expected x86-64 or aarch64: the word that says how this processor rounds is not known"
#endif

namespace gq {

// The control word of IEEE 754: rounds to nearest, keeps denormals, masks exceptions.
#if defined(__x86_64__)
constexpr unsigned int kUsualControl = 0x1F80, kLargestControl = 0xFFFF;  // MXCSR
constexpr unsigned int kFlags = 0x3F;                                     // that say what has happened, and stay

inline unsigned int float_control() { return _mm_getcsr(); }
inline void set_float_control(unsigned int word) { _mm_setcsr(word); }
#else
constexpr unsigned int kUsualControl = 0, kLargestControl = 0x07FF9F07;  // FPCR, whose upper half is reserved
constexpr unsigned int kFlags = 0;

inline unsigned int float_control() {
  unsigned long word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return static_cast<unsigned int>(word);
}
inline void set_float_control(unsigned int word) {
  asm volatile("msr fpcr, %0" : : "r"(static_cast<unsigned long>(word)));
}
#endif

inline bool is_usual(unsigned int word) { return (word & ~kFlags) == kUsualControl; }
inline bool float_control_is_usual() { return is_usual(float_control()); }

}  // namespace gq
