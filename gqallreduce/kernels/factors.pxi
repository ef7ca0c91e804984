"""Products of a matrix and its factors: V of `rows` x columns, row by row, P of rows x rank and Q of columns x rank,
which lie rank by rank. V and y are blocks of whole rows, from row `first` on. All are float32.
"""


cdef Block block_of(size_t elements, size_t p_size, size_t q_size, size_t rank, size_t first) except *:
    """ValueError if they do not fit each other."""
    if not rank or p_size % rank or q_size % rank or not q_size:
        raise ValueError(f"factors of {p_size} and {q_size} elements do not have rank {rank}")
    cdef size_t columns = q_size // rank, rows = p_size // rank
    if elements % columns or first + elements // columns > rows:
        raise ValueError(f"a block of {elements} elements from row {first} on, in a matrix of {rows} x {columns}")
    return Block(first, elements // columns, columns, rows, rank)


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
    if not rank or not q.shape[0] or q.shape[0] % rank:
        raise ValueError(f"a factor of {q.shape[0]} elements does not have rank {rank}")
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


def orthonormalize(float[::1] p not None, size_t rank):
    """P is made orthonormal, column by column; a column becomes zeros if it depends on those before."""
    if not rank or p.shape[0] % rank:
        raise ValueError(f"a factor of {p.shape[0]} elements does not have rank {rank}")
    cdef float* p_at = out_of(p)
    cdef size_t size = p.shape[0] // rank
    with nogil:
        c_orthonormalize(p_at, size, rank)
