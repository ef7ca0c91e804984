#include "gq/instruction_sets.hpp"

#ifdef GQ_HAS_VECTORS
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,f16c,popcnt,lzcnt,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define GQ_LEVEL 2
#define GQ_NAMESPACE avx512
#include "gq/table.hpp"
#pragma GCC pop_options
#endif
