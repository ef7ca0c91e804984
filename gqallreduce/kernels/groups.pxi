"""Tensors of a group put end to end, and taken apart again."""

from cpython.buffer cimport PyBUF_STRIDES, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy
from libcpp.algorithm cimport is_sorted, sort
from libcpp.utility cimport pair
from libcpp.vector cimport vector


def gather(list arrays not None, Regions regions not None, float[::1] out not None):
    """out = all regions, end to end; arrays[segment] is a tensor, or None: then its place in `out` is left alone."""
    require("elements of out", out.shape[0], regions.size)
    cdef const float[::1] array
    cdef size_t row, at = 0
    for row in range(regions.rows_.size()):
        if require_array(arrays, regions.rows_[row]):
            array = arrays[regions.rows_[row].segment]
            require_inside(regions.rows_[row], array.shape[0])
            if regions.rows_[row].size:
                memcpy(&out[at], &array[regions.rows_[row].grid.start], regions.rows_[row].size * sizeof(float))
        at += regions.rows_[row].size


def scatter(const float[::1] x not None, list arrays not None, Regions regions not None):
    """The regions of arrays[segment] = x, in which they lie end to end; where the array is None nothing is done."""
    require("elements of x", x.shape[0], regions.size)
    cdef float[::1] array
    cdef size_t row, at = 0
    for row in range(regions.rows_.size()):
        if require_array(arrays, regions.rows_[row]):
            array = arrays[regions.rows_[row].segment]
            require_inside(regions.rows_[row], array.shape[0])
            if regions.rows_[row].size:
                memcpy(&array[regions.rows_[row].grid.start], &x[at], regions.rows_[row].size * sizeof(float))
        at += regions.rows_[row].size


cdef bint require_array(list arrays, const CRegion& region) except -1:
    if region.segment >= <size_t> len(arrays):
        raise ValueError(f"arrays: got {len(arrays)}, expected at least {region.segment + 1}, by segment")
    return arrays[region.segment] is not None


cdef int require_inside(const CRegion& region, size_t n) except -1:
    if region.grid.start + region.size > n:
        raise ValueError(
            f"segment {region.segment}: got {n} elements, expected at least {region.grid.start + region.size}")
    return 0


cdef int find_bounds(array, pair[size_t, size_t]* found) except -1:
    cdef Py_buffer view
    cdef Py_ssize_t axis, extent
    PyObject_GetBuffer(array, &view, PyBUF_STRIDES)
    extent = view.itemsize
    for axis in range(view.ndim):
        extent = 0 if view.shape[axis] == 0 or extent == 0 else extent + (view.shape[axis] - 1) * view.strides[axis]
    found.first = <size_t> view.buf
    found.second = found.first + extent
    PyBuffer_Release(&view)
    return 0


def bounds(array not None):
    """(first address, the one after the last) of an array's memory, whose strides are not negative."""
    cdef pair[size_t, size_t] found
    find_bounds(array, &found)
    return found.first, found.second


def are_apart(list arrays not None):
    """Does each array end before the next one in memory begins?"""
    cdef vector[pair[size_t, size_t]] found
    cdef size_t at
    found.resize(len(arrays))
    for at in range(found.size()):
        find_bounds(arrays[at], &found[at])
    return meet_nowhere(found)


cdef bint meet_nowhere(vector[pair[size_t, size_t]]& bounds) noexcept:
    """Sorts them by address; does each end before the next one begins?"""
    cdef size_t at
    if not is_sorted(bounds.begin(), bounds.end()):
        sort(bounds.begin(), bounds.end())
    for at in range(1, bounds.size()):
        if bounds[at].first < bounds[at - 1].second:
            return False
    return True
