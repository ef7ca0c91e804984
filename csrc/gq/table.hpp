// Included once per instruction set: gathers its kernels into a table.
#include "gq/adaptive.hpp"
#include "gq/cast.hpp"
#include "gq/coded.hpp"
#include "gq/columns.hpp"
#include "gq/dither.hpp"
#include "gq/eden.hpp"
#include "gq/factors.hpp"
#include "gq/golomb.hpp"
#include "gq/integers.hpp"
#include "gq/kernels.hpp"
#include "gq/levels.hpp"
#include "gq/levels_spread.hpp"
#include "gq/multiples.hpp"
#include "gq/onebit.hpp"
#include "gq/plain.hpp"
#include "gq/products.hpp"
#include "gq/select.hpp"

namespace gq {
namespace GQ_NAMESPACE {
extern const Kernels table;
const Kernels table = {
    /*name=*/GQ_LEVEL == 0 ? "scalar"
    : GQ_LEVEL == 1        ? "avx2"
                           : "avx512",
    widen,
    narrow,
    add_finite,
    scale,
    add,
    all_finite,

    inner_product,
    rows_of_factors,
    columns_of_factors,
    product_of_factors,
    pack_factors,
    largest_of_rows,
    dither_encode,
    dither_decode,
    plain_encode,
    plain_decode,
    onebit_nbytes,
    onebit_encode,
    onebit_decode,
    onebit_decode_add,
    collect,
    histogram,
    kth,
    keep,
    count_signs,
    select_bound,
    select_columns,
    select_most,
    adaptive_encode,
    adaptive_nbytes,
    adaptive_decode,
    adaptive_decode_add,
    golomb_encode,
    golomb_sizes,
    golomb_decode,
    philox,
    random16,
    pack,
    unpack,
    levels_encode,
    levels_decode,
    levels_spread,
    coded_encode,
    coded_decode,
    prefix_table,
    rotate,
    eden_encode,
    eden_decode,
    measure,
    integers_quantize,
    integers_encode_own,
    integers_encode,
    integers_decode,
    largest_deviation,
    multiples_round,
};
}  // namespace GQ_NAMESPACE
}  // namespace gq
