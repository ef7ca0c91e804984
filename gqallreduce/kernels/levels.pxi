"""Level codecs. A region's grid has one part: its run is the bucket."""

from libc.stdint cimport uint8_t

import numpy as np

from gqallreduce.errors import WireError


# How the codes of `Levels.floating` are numbered: from the most negative level up; as the bits of a hardware format,
# the sign in the top bit; as integers.
ORDERS = {"ascending": 0, "sign and magnitude": 1, "two's complement": 2}
SCALES = {"norm": 0, "power above": 1, "power ocp": 2}


cdef class Levels:
    """What the codes of a level codec stand for, in units of a bucket's scale; what a scale is; how values are rounded.

    Built by `uniform`, `table` or `floating`, then `using`.
    """

    cdef CLevels data

    def __init__(self):
        raise TypeError("build it with Levels.uniform, Levels.table or Levels.floating")

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

    @staticmethod
    def floating(int bits, int mantissa, int lowest, int last, bint zero_level=True, order="ascending"):
        """Numbers of a floating-point format with so many mantissa bits, both signs.

        lowest
            exponent of the smallest normal number; below it the steps stay equal down to zero.
        last
            of the magnitudes, counted from zero (or the smallest, which is 1, without a level at zero), the largest.
        """
        cdef Levels levels = Levels.__new__(Levels)
        if order not in ORDERS:
            raise ValueError(f"order: got {order!r}, expected one of {', '.join(ORDERS)}")
        if not floating_levels(bits, mantissa, lowest, last, zero_level, <Order> <int> ORDERS[order], levels.data):
            raise ValueError(f"there are no levels of {bits} bits, {mantissa} of them mantissa, from exponent "
                             f"{lowest}, {last} of each sign, {'with' if zero_level else 'without'} zero, {order}")
        return levels

    def using(self, bint nearest=False, scale="norm", bint rotated=False, bint contracted=False):
        """The same levels, with values rounded to the nearest, or with another kind of scale.

        Ties go to the even number of steps: from zero for `uniform`, within a binade for `floating`, so that without a
        mantissa they go to the larger level, but half of the smallest to zero; for `table` to the greater level.

        scale
            norm: a bucket's norm over `reach`; "power above": the smallest power of two for which `reach` times it is
            no less than the norm; "power ocp": the power of two of the norm over that of `reach`, both rounded down.
        rotated
            each bucket is rotated at random before it is encoded.
        contracted
            the scale of each bucket is made smaller where that makes the error of its codes smaller.
        """
        if scale not in SCALES:
            raise ValueError(f"scale: got {scale!r}, expected one of {', '.join(SCALES)}")
        if scale != "norm" and not self.data.floating:
            raise ValueError(f"levels of this kind have no scale={scale!r}")
        cdef Levels levels = Levels.__new__(Levels)
        levels.data = self.data
        levels.data.nearest = nearest
        levels.data.scale = <Scale> <int> SCALES[scale]
        levels.data.rotated = rotated
        levels.data.contracted = contracted
        return levels

    @property
    def bits(self):
        """Bits of a code."""
        return self.data.bits

    @property
    def count(self):
        """Levels in use. Where codes ascend with them, a larger code is read as the last."""
        return self.data.count

    @property
    def reach(self):
        """The largest level."""
        return self.data.reach

    @property
    def host_only(self):
        """Have the kernels of devices no code for them? Those know norms, ascending codes and stochastic rounding."""
        ascending = not self.data.floating or self.data.floats.positive > 0 or not self.data.floats.zero
        changed = self.data.rotated or self.data.contracted
        return self.data.nearest or changed or self.data.scale != Scale.kNorm or not ascending

    @property
    def packed(self):
        """All of it as the kernel of a device reads it from memory: the bytes of the C++ structure."""
        if self.host_only:
            raise ValueError("devices have no kernels for these levels")
        return (<const char*> &self.data)[:sizeof(CLevels)]

    @property
    def values(self):
        """The level of every code: float32, 2**bits of them."""
        return np.array([self.data.value[code] for code in range(1 << self.data.bits)], np.float32)


cdef int require_memory(int bad) except -1:
    if bad & 2:
        raise MemoryError("no memory for rotated buckets")
    return 0


NO_SCALE = "a bucket with a scale that no encoder writes: negative, not finite, or too large for its levels"


cdef int require_buckets(Regions regions) except -1:
    if regions.most_parts > 1:
        raise ValueError(f"parts of a bucket: got {regions.most_parts}, expected 1")
    return 0


def levels_nbytes(Regions regions not None, Levels levels not None):
    """The bytes of the messages of all regions."""
    require_buckets(regions)
    return c_levels_nbytes(regions.table, levels.data)


def levels_encode(const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None,
                  Levels levels not None, bint l2, Regions regions not None, Stream stream not None):
    """wire = the messages of x + e, r = the error; 1 if a value or a bucket's norm is not finite, else 0."""
    require_values(x, e, r, regions)
    require_streams(stream, regions)
    require("bytes of wire", wire.shape[0], levels_nbytes(regions, levels))
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int bad
    with nogil:
        bad = c_levels_encode(x_at, e_at, r_at, wire_at, levels.data, l2, regions.table, stream.data.data())
    require_memory(bad)
    return bad


cdef int require_levels(const uint8_t[::1] wire, const float[::1] y, Levels levels, Regions regions) except -1:
    require("elements of y", y.shape[0], regions.size)
    cdef size_t expected = levels_nbytes(regions, levels)
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
    require_memory(bad)
    if bad:
        raise WireError(NO_SCALE)


def levels_decode_add(const uint8_t[::1] wire not None, float[::1] y not None, Levels levels not None,
                      Regions regions not None):
    """y += the decoded values."""
    require_levels(wire, y, levels, regions)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_levels_decode_add(wire_at, y_at, levels.data, regions.table)
    require_memory(bad)
    if bad:
        raise WireError(NO_SCALE)


SPREAD_BINS = int(kSpreadBins)


def levels_spread(const float[::1] x not None, const float[::1] e, bint l2, int power, Regions regions not None,
                  double[::1] weight not None):
    """weight += how v / norm lies in [-1, 1], of the values v = x + e of all buckets: norm**power (0, 1 or 2) of each.

    Bins ascend with v / norm, alike for both signs: 16 per power of two down to 2^-24, and one for what is below, zeros
    by their sign. Buckets whose norm is zero or not finite are left out.
    """
    require_values(x, e, None, regions)
    require_buckets(regions)
    require("bins", weight.shape[0], SPREAD_BINS)
    if power not in (0, 1, 2):
        raise ValueError(f"power of the norm: got {power}, expected 0, 1 or 2")
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    with nogil:
        c_levels_spread(x_at, e_at, l2, power, regions.table, &weight[0])
