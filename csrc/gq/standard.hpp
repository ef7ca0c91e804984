// The few names of the standard library that the CPU's and the GPU's kernels share. NVRTC, which compiles the latter at
// run time, comes without one.
#pragma once
#ifdef __CUDACC_RTC__
namespace std {

using ::memcpy;
using size_t = decltype(sizeof 0);
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;

}  // namespace std
#else
#include <cstddef>
#include <cstdint>
#include <cstring>
#endif
