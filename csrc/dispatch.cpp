// Chooses the instruction set once, at run time; GQALLREDUCE_SIMD=scalar|avx2|avx512 overrides it (tests do). Other
// processors than x86-64 have the scalar level alone.
#include <cstdlib>
#include <cstring>

#include "gq/instruction_sets.hpp"
#include "gq/kernels.hpp"

namespace gq {
namespace scalar {
extern const Kernels table;
}
#ifdef GQ_HAS_VECTORS
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

namespace {

bool supported(const char* name) {
  if (!std::strcmp(name, "scalar")) return true;
#ifdef GQ_HAS_VECTORS
  if (!std::strcmp(name, "avx2"))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
  if (!std::strcmp(name, "avx512"))
    return supported("avx2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return false;
}

const Kernels* find(const char* name) {
  if (!supported(name)) return nullptr;
#ifdef GQ_HAS_VECTORS
  if (!std::strcmp(name, "avx512")) return &avx512::table;
  if (!std::strcmp(name, "avx2")) return &avx2::table;
#endif
  return &scalar::table;
}

const Kernels* current = find(best_level());

}  // namespace

const Kernels& kernels() { return *current; }

bool use_level(const char* name) {
  const Kernels* found = find(name);
  if (found) current = found;
  return found != nullptr;
}

const char* best_level() { return supported("avx512") ? "avx512" : supported("avx2") ? "avx2" : "scalar"; }

}  // namespace gq
