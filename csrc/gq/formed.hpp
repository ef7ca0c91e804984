// What is encoded: values and, where there is feedback, the residual added.
#pragma once
#include "gq/standard.hpp"

namespace gq {
namespace GQ_NAMESPACE {

// v = x + e, or x where there is no e: in r if it is given, else in `spare` if there is an e, else x itself.
static inline const float* formed(const float* x, const float* e, float* r, float* spare, std::size_t n) {
  if (!e && !r) return x;
  float* target = r ? r : spare;
  if (e) {
    for (std::size_t i = 0; i < n; ++i) target[i] = x[i] + e[i];
  } else {
    std::memcpy(target, x, n * sizeof(float));
  }
  return target;
}

}  // namespace GQ_NAMESPACE
}  // namespace gq
