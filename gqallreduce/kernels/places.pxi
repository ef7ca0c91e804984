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


cdef unfit(int64_t fault, str what, size_t length):
    """The WireError of a fault."""
    if fault == kPlacesEndEarly:
        return WireError(f"got {length} bytes, in which {what} do not end")
    if fault == kPlacesDoNotAscend:
        return WireError(f"{what}: places do not ascend, or some are not below the end of the region")
    if fault == kSparseOtherSize:
        return WireError(f"{what}: a message is of another number of elements")
    if fault == kSparseNotFinite:
        return WireError(f"{what}: a value is not finite")
    return WireError(f"{what}: a message has another number of places or values than it says")


def draw_places(Stream stream not None, uint64_t n, int64_t[::1] place not None):
    """place := as many different places below n, ascending, drawn as `codecs/randk.py` says."""
    cdef size_t k = place.shape[0]
    require("streams", stream.data.size(), 1)
    if k > n or n >= 1 << 63:
        raise ValueError(f"places: got {k} of {n}, expected at most as many as there are, below 2**63")
    if k == 0:
        return
    with nogil:
        c_draw_places(stream.data[0], n, k, &place[0])


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
    if nbytes < 0:
        raise unfit(nbytes, f"the places of {count} of {elements} elements", length)
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


def sparse_encode(const uint32_t[::1] index not None, const float[::1] value not None, int64_t[::1] counts not None,
                  float[::1] r, uint8_t[::1] wire not None, Regions regions not None):
    """The messages of chosen values, of float32, `counts` of each region at the places `index` in it; r := 0 there.

    Returns the bytes; `wire` must have room for 12 + 4 per value and the places of each region.
    """
    cdef const int64_t* counts_at = counts_of(counts, regions)
    require("elements of value", value.shape[0], index.shape[0])
    require_errors(None, r, regions.size)
    cdef size_t at = 0, number = 0, needed = 0
    for row in regions.rows_:
        if counts[number] < 0 or at + <size_t> counts[number] > <size_t> index.shape[0]:
            raise ValueError(f"counts: got {counts[number]} in region {number}, with {index.shape[0]} places in all")
        mine = index[at:at + counts[number]]
        needed += 12 + 4 * counts[number] + places_nbytes(mine, row.size)
        at += counts[number]
        number += 1
    require("places", index.shape[0], at)
    if <size_t> wire.shape[0] < needed:
        raise ValueError(f"bytes of wire: got {wire.shape[0]}, expected at least {needed}")
    cdef const uint32_t* index_at = places_in(index)
    cdef const float* value_at = in_of(value)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_sparse_encode(index_at, value_at, counts_at, r_at, wire_at, regions.table)
    return nbytes


def sparse_decode(const uint8_t[::1] wire not None, float[::1] y not None, Regions regions not None,
                  float scale=1.0, bint add=False, bint sums=False):
    """y := scale * what messages with float32 values stand for, or y += it; returns their bytes.

    sums
        they may be sums, sparse or dense.
    """
    require("elements of y", y.shape[0], regions.size)
    require_countable(regions.largest)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef size_t length = wire.shape[0]
    cdef float* y_at = out_of(y)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_sparse_decode(wire_at, length, y_at, scale, add, sums, regions.table)
    if nbytes < 0:
        raise unfit(nbytes, f"the messages of {regions.size} elements", length)
    return nbytes
