"""Selection of the largest values of a range."""

from libc.stdint cimport int64_t, uint32_t


cdef uint32_t* indices(uint32_t[::1] view) noexcept:
    if view.shape[0] == 0:
        return NULL
    return &view[0]


cdef int64_t* counts_of(int64_t[::1] view, Regions regions) except? NULL:
    require("counts", view.shape[0], regions.table.count)
    if view.shape[0] == 0:
        return NULL
    return &view[0]


cdef int require_countable(size_t n) except -1:
    if n > 0xFFFFFFFF:
        raise ValueError(f"got {n} elements, expected at most 2^32 - 1: an index has 32 bits")
    return 0


def collect(const float[::1] x not None, const float[::1] e, float[::1] r, uint32_t floor_bits,
            uint32_t[::1] index_out not None, float[::1] value_out not None, bint streaming=False):
    """Form v = x + e (in r, if given) and list (i, v[i]) for all |v[i]| whose bits are >= floor_bits, i ascending.

    Returns how many there are; more than there is room for if they were not all stored.
    """
    cdef size_t n = x.shape[0]
    cdef size_t capacity = index_out.shape[0]
    require_countable(n)
    require_errors(e, r, n)
    require("elements of value_out", value_out.shape[0], capacity)
    if floor_bits == 0:
        raise ValueError("floor_bits: got 0, expected at least 1")
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint32_t* index_at = indices(index_out)
    cdef float* value_at = out_of(value_out)
    cdef size_t count
    with nogil:
        count = c_collect(x_at, e_at, r_at, n, floor_bits, index_at, value_at, capacity, streaming)
    return count


def histogram(const float[::1] x not None, const float[::1] e, int64_t[::1] counts not None):
    """Add to the 4096 counts how many |x + e| have each value of their upper 12 bits (those above bit 19)."""
    cdef size_t n = x.shape[0]
    require_errors(e, None, n)
    require("counts", counts.shape[0], 4096)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef int64_t* counts_at = &counts[0]
    with nogil:
        c_histogram(x_at, e_at, n, counts_at)


def kth(const float[::1] value not None, size_t k, int sign):
    """(bits of the k-th largest |v|, how many are strictly above) of the nonzero v of that sign (0 both, 1, -1)."""
    cdef size_t n = value.shape[0]
    require_countable(n)
    cdef const float* value_at = in_of(value)
    cdef size_t above = 0
    cdef uint32_t bits = 0
    with nogil:
        if k > 0:
            bits = c_kth(value_at, n, k, sign, &above)
    if bits == 0:
        raise ValueError(f"the list has no {k}-th largest value of sign {sign}")
    return bits, above


def keep(uint32_t[::1] index not None, float[::1] value not None, size_t count,
         uint32_t threshold_positive_bits, uint32_t threshold_negative_bits, int64_t[::1] ties not None, bint joint):
    """Keep, in place and in order, those of the first `count` entries that are above their sign's threshold.

    Of those equal to it as many stay as ties[0] (positive; or all, if joint) and ties[1] (negative) say, which are
    decremented. Returns the new count.
    """
    require("elements of value", value.shape[0], index.shape[0])
    require("ties", ties.shape[0], 2)
    if count > <size_t> index.shape[0]:
        raise ValueError(f"count: got {count}, expected at most {index.shape[0]}")
    cdef uint32_t* index_at = indices(index)
    cdef float* value_at = out_of(value)
    cdef int64_t* ties_at = &ties[0]
    cdef size_t kept
    with nogil:
        kept = c_keep(
            index_at, value_at, count, threshold_positive_bits, threshold_negative_bits, ties_at, joint)
    return kept


def count_signs(const float[::1] v not None):
    """(how many are > 0, how many are < 0)."""
    cdef size_t n = v.shape[0]
    cdef const float* v_at = in_of(v)
    cdef size_t positives = 0, negatives = 0
    with nogil:
        c_count_signs(v_at, n, &positives, &negatives)
    return positives, negatives


def split(uint32_t[::1] index not None, int64_t[::1] counts not None, Regions regions not None):
    """Ascending indices into all elements become those into the region that each lies in.

    counts
        how many each region has.
    """
    cdef size_t count = index.shape[0]
    cdef int64_t* counts_at = counts_of(counts, regions)
    cdef uint32_t* index_at = indices(index)
    if count > 0 and index_at[count - 1] >= regions.size:
        raise ValueError(f"index: got {index_at[count - 1]}, expected at most {regions.size}")
    with nogil:
        c_split(index_at, count, regions.table, counts_at)
