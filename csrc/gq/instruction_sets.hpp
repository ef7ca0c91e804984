// Has this build the levels avx2 and avx512 beside the scalar one? Not on other processors than x86-64, and not with
// GQ_SCALAR_ALONE.
#pragma once

#if defined(__x86_64__) && !defined(GQ_SCALAR_ALONE)
#define GQ_HAS_VECTORS
#endif
