"""Linear codecs with several steps: multiples of a unit that all ranks share; `units` as in integers.pxi."""

from libc.math cimport INFINITY, nextafterf

import numpy as np


cdef int require_steps(int steps) except -1:
    if not 1 <= steps < 1 << 23:
        raise ValueError(f"steps: got {steps}, expected 1 to 2^23 - 1")
    return 0


def largest_deviation(const float[::1] x not None, const float[::1] e, double clip, Regions regions not None):
    """For each region the largest root mean square of a bucket times clip, or sqrt(its values) if less: float64s.

    Infinite if a value of x + e is not finite.
    """
    require_values(x, e, None, regions)
    require_buckets(regions)
    cdef size_t count = regions.table.count
    found = np.empty(count, np.float64)
    cdef double[::1] view = found
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    if count > 0:
        with nogil:
            c_largest_deviation(x_at, e_at, regions.table, clip, &view[0])
    return found


cdef float unit_of_scale(double scale, int steps, double most) noexcept nogil:
    cdef double used = scale if not most * steps < scale else most * steps
    cdef float unit = <float> (used / steps)
    return nextafterf(unit, INFINITY) if unit * <double> steps < used else unit


def multiples_unit(scale, int steps, double most):
    """The least float32 that `steps` of are no less than a scale, at most about `most`: of a float, or of an array."""
    require_steps(steps)
    if isinstance(scale, float):
        return <double> unit_of_scale(scale, steps, most)
    cdef double[::1] scales = np.ascontiguousarray(scale, np.float64)
    cdef Py_ssize_t number
    units = np.empty(scales.shape[0], np.float32)
    cdef float[::1] view = units
    for number in range(view.shape[0]):
        view[number] = unit_of_scale(scales[number], steps, most)
    return units


def multiples_quantize(const float[::1] x not None, const float[::1] e, float[::1] r, float[::1] m not None,
                       units, int steps, bint rotated, Regions regions not None,
                       Stream stream not None):
    """m = x + e as multiples of the unit, at most `steps` (m may be x), r (if given) the error.

    Returns 1 if a value is not finite, or an error that is kept; then x + e stays in m around it. Else 0.
    """
    require_values(x, e, r, regions)
    require("elements of m", m.shape[0], regions.size)
    require_streams(stream, regions)
    require_buckets(regions)
    require_steps(steps)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef float* m_at = out_of(m)
    cdef const float[::1] each = units_of(units, regions)
    cdef const float* units_at = in_of(each)
    cdef int bad
    with nogil:
        bad = c_multiples_quantize(x_at, e_at, r_at, m_at, units_at, steps, rotated, regions.table, stream.data.data(),
                                   &stream.clipped)
    require_memory(bad)
    return bad


def multiples_lower(float[::1] m not None, units, bint rotated, Regions regions not None):
    """m = multiples times the unit, rotated back. Returns 1 if one is not finite, else 0."""
    require("elements of m", m.shape[0], regions.size)
    require_buckets(regions)
    cdef float* m_at = out_of(m)
    cdef const float[::1] each = units_of(units, regions)
    cdef const float* units_at = in_of(each)
    cdef int bad
    with nogil:
        bad = c_multiples_lower(m_at, units_at, rotated, regions.table)
    return bad
