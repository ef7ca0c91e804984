"""Linear codecs: multiples of a unit, `units` being float32s, one for each region, or a float for all."""

from libc.float cimport FLT_MAX
from libc.stdint cimport int64_t, uint8_t, uint32_t

import numpy as np

from gqallreduce.errors import WireError


def measure(const float[::1] x not None, const float[::1] e, bint squares, Regions regions not None):
    """Of each region (max |v|, sum of v * v by the sum rule or 0.0 if not asked for), v = x + e: float32s, float64s.

    Not finite if a value is not.
    """
    require_values(x, e, None, regions)
    cdef size_t count = regions.table.count
    largest, totals = np.empty(count, np.uint32), np.empty(count, np.float64)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef uint32_t[::1] largest_view = largest
    cdef double[::1] totals_view = totals
    if count > 0:
        with nogil:
            c_measure(x_at, e_at, regions.table, squares, &largest_view[0], &totals_view[0])
    return largest.view(np.float32), totals


cpdef int require_scales(const double[::1] numbers) except -1:
    """WireError if one is not from 0 to the largest float32 number, as those of all ranks are."""
    cdef Py_ssize_t number
    for number in range(numbers.shape[0]):
        if not 0 <= numbers[number] <= FLT_MAX:
            raise WireError(f"got a scale of {numbers[number]} from another rank, expected a float32 number of 0 or "
                            "more")
    return 0


cdef uint32_t require_terms(uint32_t terms) except 0:
    if not 1 <= terms < 1 << 24:
        raise ValueError(f"terms of a sum: got {terms}, expected 1 to 2^24 - 1")
    return terms


cdef const float[::1] units_of(units, Regions regions):
    cdef const float[::1] each = np.full(regions.table.count, units, np.float32) if isinstance(units, float) else units
    require("units", each.shape[0], regions.table.count)
    return each


cdef int require_room(const uint8_t[::1] wire, Regions regions, uint32_t terms) except -1:
    cdef size_t bound = integers_bound(regions, terms)
    if <size_t> wire.shape[0] < bound:
        raise ValueError(f"bytes of wire: got {wire.shape[0]}, expected at least {bound}")
    return 0


def integers_bound(Regions regions not None, uint32_t terms):
    """The most bytes that the messages of integers up to `terms` take."""
    return c_integers_bound(regions.table, require_terms(terms))


def integers_quantize(const float[::1] x not None, const float[::1] e, float[::1] r, float[::1] m not None,
                      units, bint ternary, Regions regions not None, Stream stream not None):
    """m = x + e as multiples of the unit (m may be x), r (if given) the error.

    Returns 1 if a value is not finite, which then stays in m, else 0.
    """
    require_values(x, e, r, regions)
    require("elements of m", m.shape[0], regions.size)
    require_streams(stream, regions)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef float* m_at = out_of(m)
    cdef const float[::1] each = units_of(units, regions)
    cdef const float* units_at = in_of(each)
    cdef int bad
    with nogil:
        bad = c_integers_quantize(
            x_at, e_at, r_at, m_at, units_at, ternary, regions.table, stream.data.data(), &stream.clipped)
    return bad


def integers_encode_own(const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None,
                        units, bint ternary, Regions regions not None,
                        Stream stream not None):
    """wire = the multiples of the unit that x + e become, r (if given) the error.

    Returns the bytes written; -1 if a value or a unit is not finite.
    """
    require_values(x, e, r, regions)
    require_streams(stream, regions)
    require_room(wire, regions, 1)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef const float[::1] each = units_of(units, regions)
    cdef const float* units_at = in_of(each)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_integers_encode_own(
            x_at, e_at, r_at, wire_at, units_at, ternary, regions.table, stream.data.data(), &stream.clipped)
    return nbytes


def integers_encode(const float[::1] m not None, uint8_t[::1] wire not None, units,
                    uint32_t terms, Regions regions not None):
    """wire = the integers in m. Returns the bytes written; -1 if one times its unit leaves float32.

    WireError if one is larger than `terms`, the most that a sum may be: a message that came held more.
    """
    require("elements of m", m.shape[0], regions.size)
    require_room(wire, regions, terms)
    cdef const float* m_at = in_of(m)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef const float[::1] each = units_of(units, regions)
    cdef const float* units_at = in_of(each)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_integers_encode(m_at, wire_at, units_at, terms, regions.table)
    if nbytes == -2:
        raise WireError(f"got a sum larger than {terms}, the most that its terms add up to")
    return nbytes


def integers_decode(const uint8_t[::1] wire not None, float[::1] y not None, units,
                    uint32_t terms, bint whole, Regions regions not None, float scale=1.0, bint add=False):
    """y = the decoded values * scale, or y += them; as integers if `whole`, else times the unit.

    The unit on the wire must be the region's, if that is not negative, and no integer larger than `terms`. `wire` may
    go on after the messages. Returns the bytes of the messages.
    """
    cdef size_t length = wire.shape[0]
    require("elements of y", y.shape[0], regions.size)
    require_terms(terms)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef const float[::1] each = units_of(units, regions)
    cdef const float* units_at = in_of(each)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_integers_decode(wire_at, length, y_at, units_at, whole, scale, add, terms, regions.table)
    if nbytes < 0:
        raise WireError(f"not {y.shape[0]} integers of at most {terms} in {length} bytes")
    return nbytes
