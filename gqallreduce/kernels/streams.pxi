"""Random bits and packed codes."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libcpp.vector cimport vector

import numpy as np


cdef class Stream:
    """Which random bits: a 64-bit key of the collective, the hop (16 bits), the encoder and the step (32 bits each).

    key, step
        or an array of uint64, of uint32: one stream per segment.
    clipped
        how many values the calls that drew from it had to clip, since they were larger than what can be sent.
    """

    cdef vector[CStream] data
    cdef readonly uint64_t clipped

    def __cinit__(self, key, hop, encoder, step):
        require_unsigned("hop", hop, 16)
        require_unsigned("encoder", encoder, 32)
        if isinstance(key, np.ndarray) or isinstance(step, np.ndarray):
            keys, steps = by_segment(key, step)
            self.append_all(keys, steps, hop, encoder)
        else:
            require_unsigned("key", key, 64)
            require_unsigned("step", step, 32)
            self.append(key, hop, encoder, step)

    cdef int append_all(self, const uint64_t[::1] keys, const uint32_t[::1] steps, uint32_t hop,
                        uint32_t encoder) except -1:
        cdef size_t segment
        require("steps", steps.shape[0], keys.shape[0])
        self.data.reserve(keys.shape[0])
        for segment in range(<size_t> keys.shape[0]):
            self.append(keys[segment], hop, encoder, steps[segment])
        return 0

    cdef int append(self, uint64_t key, uint32_t hop, uint32_t encoder, uint32_t step) except -1:
        self.data.push_back(CStream(<uint32_t> key, <uint32_t> (key >> 32), hop, encoder, step))
        return 0

    def alone(self, size_t segment):
        """The stream of one segment."""
        if segment >= self.data.size():
            raise ValueError(f"segment: got {segment}, expected one below {self.data.size()}")
        cdef Stream found = Stream.__new__(Stream, 0, 0, 0, 0)
        found.data[0] = self.data[segment]
        return found

    def __len__(self):
        return self.data.size()

    @property
    def words(self):
        """key (low, high), hop, encoder, step of the only stream, as kernels take them one by one."""
        require("streams", self.data.size(), 1)
        return self.data[0].key0, self.data[0].key1, self.data[0].hop, self.data[0].encoder, self.data[0].step


cdef int require_unsigned(str name, value, bits) except -1:
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{name}: got {value}, expected an unsigned integer of {bits} bits")
    return 0


def by_segment(key, step):
    """Both as vectors; one that is no array holds for all segments."""
    count = len(key) if isinstance(key, np.ndarray) else len(step)
    found = []
    for name, given, dtype, bits in (("key", key, np.uint64, 64), ("step", step, np.uint32, 32)):
        if not isinstance(given, np.ndarray):
            require_unsigned(name, given, bits)
            given = np.full(count, given, dtype)
        if given.dtype != dtype or given.ndim != 1:
            raise ValueError(f"{name}: got {given.dtype} of shape {given.shape}, expected a vector of {dtype.__name__}")
        found.append(np.ascontiguousarray(given))
    return found


cdef int require_streams(Stream stream, Regions regions) except -1:
    if stream.data.size() < regions.segment_count:
        raise ValueError(f"streams: got {stream.data.size()}, expected at least {regions.segment_count}, by segment")
    return 0


def philox(counter, key):
    """The four words of Philox4x32-10 for a counter of four words and a key of two."""
    cdef uint32_t word[4]
    word[0], word[1], word[2], word[3] = counter
    key0, key1 = key
    c_philox(word, key0, key1)
    return word[0], word[1], word[2], word[3]


def random16(Stream stream not None, uint64_t first, uint16_t[::1] out not None):
    """out = the 16 random bits of each of the elements first, first + 1, ..."""
    cdef size_t n = out.shape[0]
    if n == 0:
        return
    require("streams", stream.data.size(), 1)
    with nogil:
        c_random16(stream.data[0], first, n, &out[0])


cdef int require_packed(size_t nbytes, size_t n, int bits) except -1:
    if not 1 <= bits <= 8:
        raise ValueError(f"bits: got {bits}, expected 1 to 8")
    return require("bytes of wire", nbytes, (n * bits + 7) // 8)


def pack(const uint8_t[::1] code not None, int bits, uint8_t[::1] wire not None):
    """wire = the codes, each below 2**bits, as a stream of bits, lowest bit first."""
    cdef size_t n = code.shape[0]
    require_packed(wire.shape[0], n, bits)
    cdef const uint8_t* code_at = bytes_in(code)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef bint good
    with nogil:
        good = c_pack(code_at, n, bits, wire_at)
    if not good:
        raise ValueError(f"a code that does not fit into {bits} bits")


def unpack(const uint8_t[::1] wire not None, int bits, uint8_t[::1] code not None):
    """code = the codes in the stream of bits."""
    cdef size_t n = code.shape[0]
    require_packed(wire.shape[0], n, bits)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef uint8_t* code_at = bytes_out(code)
    with nogil:
        c_unpack(wire_at, n, bits, code_at)
