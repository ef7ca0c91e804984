"""Plain numbers: a message is position-free, so it needs no regions."""

from libc.stdint cimport uint8_t

from gqallreduce.errors import WireError


cdef int require_plain(size_t nbytes, size_t n, int format) except -1:
    if format not in (0, 1, 3):
        raise ValueError(f"format: got {format}, expected 0 (float16), 1 (bfloat16) or 3 (float32)")
    return require("bytes of wire", nbytes, n * (4 if format == 3 else 2))


def plain_encode(
    const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None, int format
):
    """wire = x + e rounded to the format, r (if given) what that lost; 1 if a sent value is not finite, else 0."""
    cdef size_t n = x.shape[0]
    require_errors(e, r, n)
    require_plain(wire.shape[0], n, format)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int bad
    with nogil:
        bad = c_plain_encode(x_at, e_at, r_at, wire_at, n, format)
    return bad


def plain_decode(const uint8_t[::1] wire not None, float[::1] y not None, int format, float scale, bint add,
                 bint streaming=False):
    """y = scale * wire, or y += wire; WireError if a received value is not finite."""
    cdef size_t n = y.shape[0]
    require_plain(wire.shape[0], n, format)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_plain_decode(wire_at, y_at, n, format, scale, add, streaming)
    if bad:
        raise WireError("a value on the wire is not finite")
