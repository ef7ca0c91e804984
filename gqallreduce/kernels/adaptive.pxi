"""Selection by column, and the messages of adaptive.

index (uint32) and value (float32) list the kept values of one region after the other, `counts` (int64) how many are
of each; an index is one into its region.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from gqallreduce.errors import WireError


cdef int require_columns(Regions regions) except -1:
    require_countable(regions.largest)
    if regions.tallest > 32767:
        raise ValueError(f"height of a column: got {regions.tallest}, expected at most 32767")
    return 0


cdef int require_proportion(size_t pi) except -1:
    if pi == 0:
        raise ValueError("pi: got 0, expected at least 1")
    return 0


cdef int require_selected(const uint32_t[::1] index_out, const float[::1] value_out, size_t bound) except -1:
    require("elements of value_out", value_out.shape[0], index_out.shape[0])
    if <size_t> index_out.shape[0] < bound:
        raise ValueError(f"room in index_out: got {index_out.shape[0]}, expected at least {bound}")
    return 0


def adaptive_select_bound(Regions regions not None, size_t pi):
    """The most values that adaptive_select_columns selects: the sum of max(1, height // pi) over the columns."""
    require_proportion(pi)
    return c_select_bound(regions.table, pi)


def adaptive_select_columns(const float[::1] x not None, const float[::1] e, float[::1] r,
                            uint32_t[::1] index_out not None, float[::1] value_out not None,
                            int64_t[::1] counts_out not None, Regions regions not None, size_t pi, bint separate):
    """List exactly max(1, height // pi) nonzero v = x + e of each column (fewer if fewer exist), the largest.

    Ties go by memory order. v is left in r, if given. Returns how many; -1 if a value is not finite.
    """
    require_columns(regions)
    require_values(x, e, r, regions)
    require_selected(index_out, value_out, adaptive_select_bound(regions, pi))
    cdef int64_t* counts_at = counts_of(counts_out, regions)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint32_t* index_at = indices(index_out)
    cdef float* value_at = out_of(value_out)
    cdef int64_t count
    with nogil:
        count = c_select_columns(x_at, e_at, r_at, regions.table, pi, separate, index_at, value_at, counts_at)
    return count


TALLEST_REGION = kTallestRegion


def select_regions(const float[::1] x not None, const float[::1] e, float[::1] r, uint32_t[::1] index_out not None,
                   float[::1] value_out not None, int64_t[::1] counts_out not None, Regions regions not None,
                   size_t pi, bint separate):
    """As adaptive_select_columns, but of each region, which has at most TALLEST_REGION elements."""
    require_proportion(pi)
    if regions.largest > kTallestRegion:
        raise ValueError(f"elements of a region: got {regions.largest}, expected at most {kTallestRegion}")
    require_values(x, e, r, regions)
    require_selected(index_out, value_out, c_select_regions_bound(regions.table, pi))
    cdef int64_t* counts_at = counts_of(counts_out, regions)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint32_t* index_at = indices(index_out)
    cdef float* value_at = out_of(value_out)
    cdef int64_t count
    with nogil:
        count = c_select_regions(x_at, e_at, r_at, regions.table, pi, separate, index_at, value_at, counts_at)
    return count


cdef int require_kept(size_t kept, const int64_t* counts, size_t regions) except -1:
    """The counts are not negative, and as many as are kept."""
    cdef size_t left = kept, region
    for region in range(regions):
        if counts[region] < 0 or <size_t> counts[region] > left:
            raise ValueError(f"counts: got {counts[region]} of region {region}, expected {kept} together")
        left -= counts[region]
    return require("kept values", kept - left, kept)


def adaptive_encode(const uint32_t[::1] index not None, const float[::1] value not None,
                    int64_t[::1] counts not None, float[::1] r, uint8_t[::1] wire not None, Regions regions not None):
    """wire = the messages of the kept values, index ascending in each region; r, which holds v, becomes the error.

    Returns the bytes written; -1 if a value is not finite.
    """
    cdef size_t count = index.shape[0]
    require_columns(regions)
    require("elements of value", value.shape[0], count)
    require_errors(None, r, regions.size)
    cdef const int64_t* counts_at = counts_of(counts, regions)
    require_kept(count, counts_at, regions.table.count)
    cdef size_t needed = c_adaptive_nbytes(regions.table, count)
    if <size_t> wire.shape[0] < needed:
        raise ValueError(f"bytes of wire: got {wire.shape[0]}, expected at least {needed}")
    cdef const uint32_t* index_at = NULL
    if count > 0:
        index_at = &index[0]
    cdef const float* value_at = in_of(value)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_adaptive_encode(index_at, value_at, counts_at, r_at, wire_at, regions.table)
    return nbytes


def adaptive_decode(const uint8_t[::1] wire not None, float[::1] y not None, Regions regions not None,
                    float scale=1.0, bint streaming=False):
    """y = the decoded values * scale; `wire` may go on after the messages. Returns the bytes of the messages."""
    cdef size_t length = wire.shape[0]
    require_columns(regions)
    require("elements of y", y.shape[0], regions.size)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_adaptive_decode(wire_at, length, y_at, regions.table, scale, streaming)
    if nbytes < 0:
        raise WireError(f"not an adaptive message of {y.shape[0]} elements in {length} bytes")
    return nbytes


def adaptive_decode_add(const uint8_t[::1] wire not None, float[::1] y not None, Regions regions not None):
    """y += the decoded values; `wire` may go on after the messages. Returns the bytes of the messages."""
    cdef size_t length = wire.shape[0]
    require_columns(regions)
    require("elements of y", y.shape[0], regions.size)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_adaptive_decode_add(wire_at, length, y_at, regions.table)
    if nbytes < 0:
        raise WireError(f"not an adaptive message of {y.shape[0]} elements in {length} bytes")
    return nbytes
