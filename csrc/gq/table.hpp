// Included once per instruction set: gathers its kernels into a table.
#include "gq/cast.hpp"
#include "gq/kernels.hpp"
#include "gq/onebit.hpp"

namespace gq {
namespace GQ_NAMESPACE {
extern const Kernels table;
const Kernels table = {
    /*name=*/GQ_LEVEL == 0 ? "scalar" : GQ_LEVEL == 1 ? "avx2" : "avx512",
    widen,
    narrow,
    add_finite,
    scale,
    add,
    all_finite,
    onebit_nbytes,
    onebit_encode,
    onebit_decode,
    onebit_decode_add,
};
}  // namespace GQ_NAMESPACE
}  // namespace gq
