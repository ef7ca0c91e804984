// libFuzzer's counters for code that GCC compiles with -fsanitize-coverage=trace-pc: one of 16384 for each basic block,
// by its address, which two blocks may share. Compiled without that option.
#include <cstdint>

extern "C" {

// libFuzzer's, which is not there in what only makes inputs.
__attribute__((weak)) void __sanitizer_cov_8bit_counters_init(std::uint8_t* start, std::uint8_t* stop);

extern const char __executable_start;

static std::uint8_t counters[1 << 14];

__attribute__((constructor)) static void tell_libfuzzer() {
  if (__sanitizer_cov_8bit_counters_init) __sanitizer_cov_8bit_counters_init(counters, counters + sizeof counters);
}

void __sanitizer_cov_trace_pc() {
  // From where the program begins, which is elsewhere in each process.
  const auto block = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) -
                     reinterpret_cast<std::uintptr_t>(&__executable_start);
  std::uint8_t& counter = counters[(block * 0x9e3779b97f4a7c15) >> 50];
  counter += counter < 255;
}
}
