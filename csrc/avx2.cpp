#include "gq/instruction_sets.hpp"

#ifdef GQ_HAS_VECTORS
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,f16c,popcnt,lzcnt")
#define GQ_LEVEL 1
#define GQ_NAMESPACE avx2
#include "gq/table.hpp"
#pragma GCC pop_options
#endif
