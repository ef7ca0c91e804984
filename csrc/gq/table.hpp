// Included once per instruction set: gathers its kernels into a table.
#include "gq/cast.hpp"
#include "gq/kernels.hpp"
#include "gq/levels.hpp"

namespace gq {
namespace GQ_NAMESPACE {
extern const Kernels table;
const Kernels table = {
    /*name=*/GQ_LEVEL == 0 ? "scalar" : GQ_LEVEL == 1 ? "avx2" : "avx512",
    widen,
    narrow,
    philox,
    random16,
    pack,
    unpack,
    levels_encode,
    levels_decode,
};
}  // namespace GQ_NAMESPACE
}  // namespace gq
