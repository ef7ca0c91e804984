"""Level codecs. A region's grid has one part: its run is the bucket."""

from libc.stdint cimport uint8_t

import numpy as np

from gqallreduce.errors import WireError


cdef class Levels:
    """What the codes of a level codec stand for, in units of a bucket's norm. Built by `uniform` or `table`."""

    cdef CLevels data

    def __init__(self):
        raise TypeError("build it with Levels.uniform or Levels.table")

    @staticmethod
    def uniform(int bits, bint zero_level):
        """Equal steps from -1 to 1: 2**bits - 1 of them with a level at zero (bits >= 2), 2**bits without."""
        cdef Levels levels = Levels.__new__(Levels)
        if not uniform_levels(bits, zero_level, levels.data):
            raise ValueError(f"bits: got {bits}, expected {2 if zero_level else 1} to 8 "
                             f"{'with' if zero_level else 'without'} a level at zero")
        return levels

    @staticmethod
    def table(int bits, const float[::1] value not None):
        """2 to 2**bits float32 levels that ascend strictly in [-1, 1]."""
        cdef Levels levels = Levels.__new__(Levels)
        if not table_levels(bits, in_of(value), value.shape[0], levels.data):
            raise ValueError(f"levels: got {np.asarray(value)} for {bits} bits, expected 2 to 2**bits (bits 1 to 8) "
                             "that ascend in [-1, 1] by more than 2**-100")
        return levels

    @property
    def bits(self):
        """Bits of a code."""
        return self.data.bits

    @property
    def count(self):
        """Levels in use; a larger code is read as the last."""
        return self.data.count

    @property
    def packed(self):
        """All of it as a kernel reads it from memory: the bytes of the C++ structure."""
        return (<const char*> &self.data)[:sizeof(CLevels)]

    @property
    def values(self):
        """The level of every code: float32, 2**bits of them."""
        return np.array([self.data.value[code] for code in range(1 << self.data.bits)], np.float32)


cdef int require_buckets(Regions regions) except -1:
    if regions.most_parts > 1:
        raise ValueError(f"parts of a bucket: got {regions.most_parts}, expected 1")
    return 0


def levels_nbytes(Regions regions not None, int bits):
    """The bytes of the messages of all regions."""
    if not 1 <= bits <= 8:
        raise ValueError(f"bits: got {bits}, expected 1 to 8")
    require_buckets(regions)
    return c_levels_nbytes(regions.table, bits)


def levels_encode(const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None,
                  Levels levels not None, bint l2, Regions regions not None, Stream stream not None):
    """wire = the messages of x + e, r = the error; 1 if a value or a bucket's norm is not finite, else 0."""
    require_values(x, e, r, regions)
    require_streams(stream, regions)
    require("bytes of wire", wire.shape[0], levels_nbytes(regions, levels.data.bits))
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int bad
    with nogil:
        bad = c_levels_encode(x_at, e_at, r_at, wire_at, levels.data, l2, regions.table, stream.data.data())
    return bad


cdef int require_levels(const uint8_t[::1] wire, const float[::1] y, Levels levels, Regions regions) except -1:
    require("elements of y", y.shape[0], regions.size)
    cdef size_t expected = levels_nbytes(regions, levels.data.bits)
    if <size_t> wire.shape[0] != expected:
        raise WireError(f"{y.shape[0]} elements in buckets: got {wire.shape[0]} bytes, expected {expected}")
    return 0


def levels_decode(const uint8_t[::1] wire not None, float[::1] y not None, Levels levels not None,
                  Regions regions not None, float scale=1.0):
    """y = the decoded values * scale."""
    require_levels(wire, y, levels, regions)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_levels_decode(wire_at, y_at, levels.data, regions.table, scale)
    if bad:
        raise WireError("a bucket with a norm that is negative or not finite")


def levels_decode_add(const uint8_t[::1] wire not None, float[::1] y not None, Levels levels not None,
                      Regions regions not None):
    """y += the decoded values."""
    require_levels(wire, y, levels, regions)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_levels_decode_add(wire_at, y_at, levels.data, regions.table)
    if bad:
        raise WireError("a bucket with a norm that is negative or not finite")
