"""The places of chosen elements as bytes, and values added at such places.

index: uint32, ascending. The form of the bytes is described in gqallreduce/coding/places.py.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

import numpy as np

from gqallreduce.errors import WireError


cdef const uint32_t* places_in(const uint32_t[::1] index) noexcept:
    if index.shape[0] == 0:
        return NULL
    return &index[0]


cdef int require_below(const uint32_t[::1] index, size_t elements) except -1:
    """Of places that ascend."""
    require_countable(elements)
    if index.shape[0] and index[index.shape[0] - 1] >= elements:
        raise ValueError(f"places: got one of {index[index.shape[0] - 1]}, expected all below {elements}")
    return 0


def places_nbytes(const uint32_t[::1] index not None, size_t elements):
    """The bytes of these places of so many elements."""
    require_below(index, elements)
    return c_places_nbytes(places_in(index), index.shape[0], elements)


def places_write(const uint32_t[::1] index not None, size_t elements, uint8_t[::1] wire not None):
    """Writes them; returns the bytes."""
    cdef size_t nbytes = places_nbytes(index, elements)
    if <size_t> wire.shape[0] < nbytes:
        raise ValueError(f"bytes of wire: got {wire.shape[0]}, expected at least {nbytes}")
    return c_places_write(places_in(index), index.shape[0], elements, bytes_out(wire))


def places_read(const uint8_t[::1] wire not None, size_t elements, size_t count):
    """(so many places, the bytes that they take); WireError for what is none."""
    require_countable(elements)
    if count > elements:
        raise WireError(f"{count} places of {elements} elements")
    index = np.empty(count, np.uint32)
    cdef uint32_t[::1] index_view = index
    cdef int64_t nbytes
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef size_t length = wire.shape[0]
    cdef uint32_t* index_at = indices(index_view)
    with nogil:
        nbytes = c_places_read(wire_at, length, elements, index_at, count)
    if nbytes == kPlacesEndEarly:
        raise WireError(f"got {length} bytes, in which the places of {count} entries do not end")
    if nbytes == kPlacesDoNotAscend:
        raise WireError(f"the places of {count} entries do not ascend, or are not below {elements}")
    if nbytes < 0:
        raise WireError(f"expected the places of {count} entries as the message says, got another number of them")
    return index, nbytes


def add_at(float[::1] y not None, const uint32_t[::1] index not None, const uint8_t[::1] values not None):
    """y[index] += the float32 numbers in the bytes `values`."""
    require("bytes of values", values.shape[0], 4 * index.shape[0])
    cdef float* y_at = out_of(y)
    cdef size_t n = y.shape[0]
    cdef size_t count = index.shape[0]
    cdef const uint32_t* index_at = places_in(index)
    cdef const uint8_t* values_at = bytes_in(values)
    cdef bint good
    with nogil:
        good = c_add_at(y_at, n, index_at, values_at, count)
    if not good:
        raise ValueError(f"places: got some that are not below {n}")


def put_at(float[::1] y not None, const uint32_t[::1] index not None, const uint8_t[::1] values not None):
    """y[index] = the float32 numbers in the bytes `values`."""
    require("bytes of values", values.shape[0], 4 * index.shape[0])
    if not c_put_at(out_of(y), y.shape[0], places_in(index), bytes_in(values), index.shape[0]):
        raise ValueError(f"places: got some that are not below {y.shape[0]}")
