"""Products of a matrix and its factors: V of `rows` x columns, row by row, P of rows x rank and Q of columns x rank,
which lie rank by rank. V and y are blocks of whole rows, from row `first` on. All are float32.
"""

from libc.math cimport fabsf, frexpf, ldexpf


cdef Block block_of(size_t elements, size_t p_size, size_t q_size, size_t rank, size_t first) except *:
    """ValueError if they do not fit each other."""
    if not rank or p_size % rank or q_size % rank or not q_size:
        raise ValueError(f"factors of {p_size} and {q_size} elements do not have rank {rank}")
    cdef size_t columns = q_size // rank, rows = p_size // rank
    if elements % columns or first + elements // columns > rows:
        raise ValueError(f"a block of {elements} elements from row {first} on, in a matrix of {rows} x {columns}")
    return Block(first, elements // columns, columns, rows, rank)


cdef int require_rank(size_t elements, size_t rank) except -1:
    """ValueError if a factor of so many elements is none of this rank, or has none."""
    if not rank or not elements or elements % rank:
        raise ValueError(f"a factor of {elements} elements does not have rank {rank}")
    return 0


def rows_of_factors(const float[::1] v not None, const float[::1] q not None, float[::1] p not None, size_t rank,
                    size_t first):
    """The block's rows of P := V Q."""
    cdef Block block = block_of(v.shape[0], p.shape[0], q.shape[0], rank, first)
    cdef const float* v_at = in_of(v)
    cdef const float* q_at = in_of(q)
    cdef float* p_at = out_of(p)
    with nogil:
        c_rows_of_factors(v_at, block, q_at, p_at)


def columns_of_factors(const float[::1] v not None, const float[::1] p not None, float[::1] q not None, size_t rank,
                       size_t first):
    """Q += transposed V P, of the block's rows."""
    cdef Block block = block_of(v.shape[0], p.shape[0], q.shape[0], rank, first)
    cdef const float* v_at = in_of(v)
    cdef const float* p_at = in_of(p)
    cdef float* q_at = out_of(q)
    with nogil:
        c_columns_of_factors(v_at, block, p_at, q_at)


cdef Put put_of(bint subtract, bint add) noexcept nogil:
    return Put.kSubtract if subtract else Put.kAdd if add else Put.kSet


def product_of_factors(const float[::1] p not None, const float[::1] q not None, float[::1] y not None, size_t rank,
                       size_t first, bint subtract=False, bint add=False):
    """The block y := P transposed Q; with `subtract` y -= that, with `add` y += that."""
    cdef Block block = block_of(y.shape[0], p.shape[0], q.shape[0], rank, first)
    cdef const float* p_at = in_of(p)
    cdef const float* q_at = in_of(q)
    cdef float* y_at = out_of(y)
    with nogil:
        c_product_of_factors(p_at, q_at, block, put_of(subtract, add), False, y_at)


def pack_factors(const float[::1] q not None, size_t rank):
    """A copy of Q in panels of columns, for `product_of_packed`."""
    require_rank(q.shape[0], rank)
    cdef size_t columns = q.shape[0] // rank
    packed = np.empty(rank * packed_columns(columns), np.float32)
    cdef float[::1] view = packed
    cdef const float* q_at = in_of(q)
    cdef float* packed_at = out_of(view)
    with nogil:
        c_pack_factors(q_at, rank, columns, packed_at)
    return packed


def product_of_packed(const float[::1] p not None, const float[::1] packed not None, float[::1] y not None,
                      size_t columns, size_t rank, size_t first, bint subtract=False, bint add=False):
    """As `product_of_factors`, with a Q of `columns` that was packed: faster where there are more than a few ranks."""
    if packed.shape[0] != <Py_ssize_t> (rank * packed_columns(columns)):
        raise ValueError(f"a packed factor of {packed.shape[0]} elements, expected {rank * packed_columns(columns)}")
    cdef Block block = block_of(y.shape[0], p.shape[0], rank * columns, rank, first)
    cdef const float* p_at = in_of(p)
    cdef const float* packed_at = in_of(packed)
    cdef float* y_at = out_of(y)
    with nogil:
        c_product_of_factors(p_at, packed_at, block, put_of(subtract, add), True, y_at)


def has_empty_rank(const float[::1] q not None, size_t rank):
    """Is a rank of a factor all zeros?"""
    require_rank(q.shape[0], rank)
    cdef size_t size = q.shape[0] // rank, at, i
    for at in range(0, <size_t> q.shape[0], size):
        i = 0
        while i < size and q[at + i] == 0:
            i += 1
        if i == size:
            return True
    return False


def scaled_factor(const float[::1] q not None, size_t rank, int exponent):
    """A copy, each rank times a power of two: its largest magnitude is from 2^-exponent / 2 to below 2^-exponent.

    A rank of zeros stays as it is.
    """
    require_rank(q.shape[0], rank)
    cdef size_t size = q.shape[0] // rank, at, i
    cdef float largest
    cdef int places = 0
    scaled = np.empty(q.shape[0], np.float32)
    cdef float[::1] view = scaled
    for at in range(0, <size_t> q.shape[0], size):
        largest = 0
        for i in range(at, at + size):
            largest = max(largest, fabsf(q[i]))
        frexpf(largest, &places)
        for i in range(at, at + size):
            view[i] = ldexpf(q[i], -places - exponent) if largest > 0 else q[i]
    return scaled


def orthonormalize(float[::1] p not None, size_t rank):
    """P is made orthonormal, column by column; a column becomes zeros if it depends on those before."""
    if not rank or p.shape[0] % rank:
        raise ValueError(f"a factor of {p.shape[0]} elements does not have rank {rank}")
    cdef float* p_at = out_of(p)
    cdef size_t size = p.shape[0] // rank
    with nogil:
        c_orthonormalize(p_at, size, rank)
