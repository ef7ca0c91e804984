"""One-bit messages."""

from libc.stdint cimport uint8_t

from gqallreduce.errors import WireError


def onebit_nbytes(Regions regions not None):
    """The bytes of the one-bit messages of all regions."""
    return c_onebit_nbytes(regions.table)


def onebit_encode(const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None,
                  Regions regions not None):
    """wire = the one-bit messages of x + e, r = the error; 1 if a value is not finite, else 0."""
    require_values(x, e, r, regions)
    require("bytes of wire", wire.shape[0], c_onebit_nbytes(regions.table))
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef bint bad
    with nogil:
        bad = c_onebit_encode(x_at, e_at, r_at, wire_at, regions.table) < 0
    return int(bad)


cdef int require_onebit(const uint8_t[::1] wire, const float[::1] y, Regions regions) except -1:
    require("elements of y", y.shape[0], regions.size)
    cdef size_t expected = c_onebit_nbytes(regions.table)
    if <size_t> wire.shape[0] != expected:
        raise WireError(f"a one-bit message of {y.shape[0]} elements: got {wire.shape[0]} bytes, expected {expected}")
    return 0


def onebit_decode(const uint8_t[::1] wire not None, float[::1] y not None, Regions regions not None, float scale=1.0):
    """y = the decoded values * scale."""
    require_onebit(wire, y, regions)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef bint bad
    with nogil:
        bad = c_onebit_decode(wire_at, y_at, regions.table, scale) < 0
    if bad:
        raise WireError("a one-bit message with a mean that is not finite")


def onebit_decode_add(const uint8_t[::1] wire not None, float[::1] y not None, Regions regions not None):
    """y += the decoded values."""
    require_onebit(wire, y, regions)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef bint bad
    with nogil:
        bad = c_onebit_decode_add(wire_at, y_at, regions.table) < 0
    if bad:
        raise WireError("a one-bit message with a mean that is not finite")
