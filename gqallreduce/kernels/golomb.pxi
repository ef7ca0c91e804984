"""Messages of adaptive with Golomb-Rice codes in place of entries."""

from libc.stdint cimport int64_t, uint8_t

import numpy as np

from gqallreduce.errors import WireError


def adaptive_nbytes(Regions regions not None, size_t count):
    """The bytes of messages of adaptive with so many entries."""
    return c_adaptive_nbytes(regions.table, count)


def golomb_bound(Regions regions not None, size_t nbytes):
    """The room for shorter messages that messages of so many bytes need."""
    return c_golomb_bound(regions.table, nbytes)


def golomb_encode(const uint8_t[::1] message not None, uint8_t[::1] wire not None, Regions regions not None):
    """wire = messages of adaptive, as adaptive_encode has made them, with shorter entries. Returns the bytes."""
    require_columns(regions)
    cdef size_t bound = golomb_bound(regions, message.shape[0])
    if <size_t> wire.shape[0] < bound:
        raise ValueError(f"bytes of wire: got {wire.shape[0]}, expected at least {bound}")
    cdef const uint8_t* from_at = bytes_in(message)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef size_t length = message.shape[0]
    cdef int64_t nbytes
    with nogil:
        nbytes = c_golomb_encode(from_at, length, wire_at, regions.table)
    if nbytes < 0:
        raise ValueError(f"message: got {length} bytes that are no messages of adaptive of {regions.size} elements")
    return nbytes


cdef GolombSizes golomb_sizes_of(const uint8_t[::1] wire, Regions regions) except *:
    require_columns(regions)
    cdef GolombSizes sizes = c_golomb_sizes(bytes_in(wire), wire.shape[0], regions.table)
    if sizes.coded < 0:
        raise WireError(f"not an adaptive message of {regions.size} elements, coding=golomb, in {wire.shape[0]} bytes")
    return sizes


def golomb_decode(const uint8_t[::1] wire not None, Regions regions not None):
    """(messages of adaptive that those at the beginning of `wire` stand for, the bytes of these)."""
    cdef GolombSizes sizes = golomb_sizes_of(wire, regions)
    cdef uint8_t[::1] coded = np.zeros(sizes.coded + 8, np.uint8)  # a reader looks behind the end
    if sizes.coded:
        coded[:sizes.coded] = wire[:sizes.coded]
    message = np.empty(sizes.nbytes, np.uint8)
    cdef uint8_t[::1] message_view = message
    cdef const uint8_t* coded_at = bytes_in(coded)
    cdef uint8_t* message_at = bytes_out(message_view)
    cdef bint good
    with nogil:
        good = c_golomb_decode(coded_at, message_at, regions.table)
    if not good:
        raise WireError(f"not an adaptive message of {regions.size} elements, coding=golomb, in {wire.shape[0]} bytes")
    return message, sizes.coded


def golomb_entries(const uint8_t[::1] wire not None, Regions regions not None):
    """(entries of the messages at the beginning of `wire`, their bytes)."""
    cdef GolombSizes sizes = golomb_sizes_of(wire, regions)
    return sizes.entries, sizes.coded
