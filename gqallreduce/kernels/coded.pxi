"""Level codecs with an entropy code."""

from libc.stdint cimport int64_t, uint8_t

from gqallreduce.errors import WireError

CODINGS = {"huffman": 1, "elias": 2, "rans": 3}


cdef Coding coding_of(str name) except *:
    if name not in CODINGS:
        raise ValueError(f"coding: got {name!r}, expected one of {', '.join(CODINGS)}")
    return <Coding> <int> CODINGS[name]


def coded_bound(Regions regions not None, Levels levels not None):
    """The most bytes that the messages of all regions take."""
    require_buckets(regions)
    return c_coded_bound(regions.table, levels.data)


def coded_encode(const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None,
                 Levels levels not None, str coding not None, bint l2, Regions regions not None,
                 Stream stream not None):
    """wire = the messages of x + e, r = the error. Returns the bytes; -1 if a value or a norm is not finite."""
    require_values(x, e, r, regions)
    require_streams(stream, regions)
    cdef size_t bound = coded_bound(regions, levels)
    if <size_t> wire.shape[0] < bound:
        raise ValueError(f"bytes of wire: got {wire.shape[0]}, expected at least {bound}")
    cdef Coding code = coding_of(coding)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_coded_encode(x_at, e_at, r_at, wire_at, levels.data, code, l2, regions.table, stream.data.data())
    if nbytes == kNoMemory:
        raise MemoryError(f"coding={coding}: no memory for sections of buckets")
    return nbytes


def coded_decode(const uint8_t[::1] wire not None, float[::1] y not None, Levels levels not None, str coding not None,
                 Regions regions not None, float scale=1.0, bint add=False):
    """y = the decoded values * scale, or y += them. `wire` may go on behind the messages. Returns their bytes."""
    require("elements of y", y.shape[0], regions.size)
    require_buckets(regions)
    cdef Coding code = coding_of(coding)
    cdef size_t length = wire.shape[0]
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_coded_decode(wire_at, length, y_at, levels.data, code, regions.table, scale, add)
    if nbytes == kNoMemory:
        raise MemoryError(f"coding={coding}: no memory for sections of buckets")
    if nbytes < 0:
        raise WireError(f"not a message of {y.shape[0]} elements by coding={coding} in {length} bytes")
    return nbytes


def elias_patterns(Levels levels not None):
    """code -> its pattern of dense Elias coding, as a text of 0 and 1; "" for a code that is never written."""
    cdef EliasCode elias = c_elias_code(levels.data)
    return [f"{elias.dense.pattern[code]:0{elias.dense.length[code]}b}" if elias.dense.length[code] else ""
            for code in range(1 << levels.data.bits)]
