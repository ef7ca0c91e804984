"""Casts, sums and scaling, which know no regions."""

from libc.stdint cimport uint8_t

from gqallreduce.errors import WireError

# A float32 array, or float32s as bytes at any address.
ctypedef fused FloatsOrBytes:
    float
    uint8_t


cdef size_t itemsize(int format) except 0:
    if not 0 <= format <= 2:
        raise ValueError(f"format: got {format}, expected 0 (float16), 1 (bfloat16) or 2 (float64)")
    return 8 if format == 2 else 2


def widen(const uint8_t[::1] source not None, float[::1] y not None, int format):
    """y = source, of format 0 float16, 1 bfloat16, 2 float64; 1 if a result is not finite, else 0."""
    cdef size_t n = y.shape[0]
    require("bytes of source", source.shape[0], n * itemsize(format))
    cdef const uint8_t* source_at = bytes_in(source)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_widen(source_at, y_at, n, format)
    return bad


def narrow(const float[::1] x not None, uint8_t[::1] target not None, int format):
    """target = x rounded to the format, to nearest even; 1 if a result is not finite, else 0."""
    cdef size_t n = x.shape[0]
    require("bytes of target", target.shape[0], n * itemsize(format))
    cdef const float* x_at = in_of(x)
    cdef uint8_t* target_at = bytes_out(target)
    cdef int bad
    with nogil:
        bad = c_narrow(x_at, target_at, n, format)
    return bad


def add_finite(const float[::1] x not None, const float[::1] e, FloatsOrBytes[::1] y not None):
    """y = x + e, or x if e is None; y is float32 or bytes. 1 if a result is not finite, else 0."""
    cdef size_t n = x.shape[0]
    require_errors(e, None, n)
    require("bytes of y", y.shape[0] * sizeof(FloatsOrBytes), n * sizeof(float))
    if n == 0:
        return 0
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef uint8_t* y_at = <uint8_t*> &y[0]
    cdef int bad
    with nogil:
        bad = c_add_finite(x_at, e_at, y_at, n)
    return bad


def add(const float[::1] a not None, float[::1] y not None):
    """y += a."""
    cdef size_t n = y.shape[0]
    require("elements of a", a.shape[0], n)
    cdef const uint8_t* a_at = <const uint8_t*> in_of(a)
    cdef float* y_at = out_of(y)
    with nogil:
        c_add(a_at, y_at, n)


def add_wire(const uint8_t[::1] wire not None, float[::1] y not None):
    """y += the float32s in the bytes `wire`."""
    cdef size_t n = y.shape[0]
    if <size_t> wire.shape[0] != n * sizeof(float):
        raise WireError(f"got {wire.shape[0]} bytes, expected {n * sizeof(float)}")
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    with nogil:
        c_add(wire_at, y_at, n)


def scale(float[::1] y not None, float factor):
    """y *= factor; 1 if a result is not finite, else 0."""
    cdef size_t n = y.shape[0]
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_scale(y_at, factor, n)
    return bad


def all_finite(const float[::1] x not None):
    cdef size_t n = x.shape[0]
    cdef const float* x_at = in_of(x)
    cdef bint finite
    with nogil:
        finite = c_all_finite(x_at, n)
    return finite
