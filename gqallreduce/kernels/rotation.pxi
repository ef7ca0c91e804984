"""Randomized Hadamard rotations of buckets, and EDEN. A region's grid has one part: its run is the bucket."""

from libc.stdint cimport uint8_t, uint64_t

from gqallreduce.errors import WireError


def rotate(const float[::1] x not None, float[::1] y not None, uint64_t start, uint64_t bucket, uint64_t key,
           int rounds=1, bint back=False):
    """y = the buckets of x, whose first value is element `start` of its vector, rotated or rotated back; y may be x."""
    require("elements of y", y.shape[0], x.shape[0])
    if bucket < 1 or not 0 <= rounds <= 4:
        raise ValueError(f"rotation: got bucket={bucket}, rounds={rounds}, expected at least 1, and 0 to 4")
    cdef Grid grid = Grid(start, bucket, 1)
    cdef const float* x_at = in_of(x)
    cdef float* y_at = out_of(y)
    cdef size_t n = x.shape[0]
    with nogil:
        c_rotate(x_at, y_at, n, grid, key, rounds, back)


cdef int require_eden(int bits, Regions regions) except -1:
    if not 1 <= bits <= 4:
        raise ValueError(f"bits: got {bits}, expected 1 to 4")
    return require_buckets(regions)


def eden_nbytes(Regions regions not None, int bits):
    """The bytes of the messages of all regions."""
    require_eden(bits, regions)
    return c_eden_nbytes(regions.table, bits)


def eden_encode(const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None, int bits,
                Regions regions not None, Stream stream not None, bint contracted=False):
    """wire = the messages of x + e, r = the error; 1 if a value or a bucket's norm cannot be sent, else 0.

    contracted
        scales make the error small, in place of the bias zero.
    """
    require_values(x, e, r, regions)
    require_streams(stream, regions)
    require("bytes of wire", wire.shape[0], eden_nbytes(regions, bits))
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int bad
    with nogil:
        bad = c_eden_encode(x_at, e_at, r_at, wire_at, bits, contracted, regions.table, stream.data.data())
    require_memory(bad)
    return bad


def eden_decode(const uint8_t[::1] wire not None, float[::1] y not None, int bits, Regions regions not None,
                float scale=1.0, bint add=False):
    """y = the decoded values * scale, or y += them."""
    require("elements of y", y.shape[0], regions.size)
    cdef size_t expected = eden_nbytes(regions, bits)
    if <size_t> wire.shape[0] != expected:
        raise WireError(f"{y.shape[0]} elements in buckets: got {wire.shape[0]} bytes, expected {expected}")
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_eden_decode(wire_at, y_at, bits, regions.table, scale, add)
    require_memory(bad)
    if bad:
        raise WireError(NO_SCALE)
