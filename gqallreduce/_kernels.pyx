# distutils: language = c++
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Doors to the C++ kernels: check sizes, drop the GIL, call. One file per family in gqallreduce/kernels.

x (values), e (residual before, or None), r (new residual, or None) and y (what is decoded) are float32, wire is uint8.
Where a kernel takes `regions`, a table of them, the arrays hold the elements of all regions end to end, and the wire
their messages.
`streaming`: the array written (r or y) is large and not read again soon; it changes no value.
"""

include "kernels/common.pxi"
include "kernels/groups.pxi"
include "kernels/arrays.pxi"
include "kernels/casts.pxi"
include "kernels/plain.pxi"
include "kernels/streams.pxi"
include "kernels/onebit.pxi"
include "kernels/levels.pxi"
include "kernels/coded.pxi"
include "kernels/rotation.pxi"
include "kernels/integers.pxi"
include "kernels/multiples.pxi"
include "kernels/selection.pxi"
include "kernels/adaptive.pxi"
include "kernels/golomb.pxi"
include "kernels/places.pxi"
include "kernels/factors.pxi"
include "kernels/dither.pxi"
include "kernels/coders.pxi"
include "kernels/states.pxi"
include "kernels/kept.pxi"
include "kernels/runtime.pxi"
include "kernels/scales.pxi"
include "kernels/spent.pxi"
include "kernels/progress.pxi"
include "kernels/link.pxi"
include "kernels/claims.pxi"
include "kernels/known.pxi"
include "kernels/repeat.pxi"
