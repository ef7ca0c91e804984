# distutils: language = c++
"""Doors to the C++ kernels: check sizes, drop the GIL, call."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

import numpy as np

from gqallreduce.errors import WireError

cdef extern from "gq/kernels.hpp" namespace "gq" nogil:
    cdef struct Grid:
        uint64_t start, run, parts
    cdef struct Kernels:
        const char* name
    const Kernels& kernels()
    bint use_level(const char* name)
    const char* best_level()

cdef extern from "gq/door.hpp" namespace "gq" nogil:
    int c_threads "gq::threads" ()
    void c_set_threads "gq::set_threads" (int n)

cdef extern from "gq/levels_doors.hpp" namespace "gq" nogil:
    cdef struct CStream "gq::Stream":
        uint32_t key0, key1, hop, encoder, step
    void c_philox "gq::philox" (uint32_t* word, uint32_t key0, uint32_t key1)
    void c_random16 "gq::random16" (const CStream& stream, uint64_t first, size_t count, uint16_t* out)
    bint c_pack "gq::pack" (const uint8_t* code, size_t n, int bits, uint8_t* wire)
    void c_unpack "gq::unpack" (const uint8_t* wire, size_t n, int bits, uint8_t* code)

    cdef struct CLevels "gq::Levels":
        int bits, count
        float value[256]
    bint uniform_levels(int bits, bint zero_level, CLevels& levels)
    bint table_levels(int bits, const float* value, size_t count, CLevels& levels)
    size_t c_levels_nbytes "gq::levels_nbytes" (size_t n, int bits, const Grid& grid)
    int c_levels_encode "gq::levels_encode" (
        const float* x, const float* e, float* r, uint8_t* wire, size_t n, const CLevels& levels, bint l2,
        const Grid& grid, const CStream& stream)
    int c_levels_decode "gq::levels_decode" (
        const uint8_t* wire, float* y, size_t n, const CLevels& levels, const Grid& grid, float scale)
    int c_levels_decode_add "gq::levels_decode_add" (
        const uint8_t* wire, float* y, size_t n, const CLevels& levels, const Grid& grid)


def simd_level():
    return kernels().name.decode()


def use_simd_level(str name):
    if not use_level(name.encode()):
        raise ValueError(f"SIMD level {name!r} is not known or not supported; best here: {best_level().decode()}")


def threads():
    """How many threads one call may use."""
    return c_threads()


def set_threads(int n):
    """Let one call use n threads (less than 1 means 1); the results do not depend on it."""
    c_set_threads(n)


cdef const float* in_of(const float[::1] view) noexcept:
    if view is None or view.shape[0] == 0:
        return NULL
    return &view[0]


cdef float* out_of(float[::1] view) noexcept:
    if view is None or view.shape[0] == 0:
        return NULL
    return &view[0]


cdef const uint8_t* bytes_in(const uint8_t[::1] view) noexcept:
    if view.shape[0] == 0:
        return NULL
    return &view[0]


cdef uint8_t* bytes_out(uint8_t[::1] view) noexcept:
    if view.shape[0] == 0:
        return NULL
    return &view[0]


cdef int require(str what, size_t got, size_t expected) except -1:
    if got != expected:
        raise ValueError(f"{what}: got {got}, expected {expected}")
    return 0


cdef int require_errors(const float[::1] e, float[::1] r, size_t n) except -1:
    if e is not None:
        require("elements of e", e.shape[0], n)
    if r is not None:
        require("elements of r", r.shape[0], n)
    return 0


cdef Grid grid_of(uint64_t start, uint64_t run, uint64_t parts) except *:
    if not 1 <= parts <= run:
        raise ValueError(f"a run of {run} elements cannot have {parts} parts")
    return Grid(start, run, parts)


# --- casts ---

# --- one bit ---

# --- random bits and packed codes ---


cdef class Stream:
    """Which random bits: a 64-bit key of the collective, the hop (16 bits), the encoder and the step (32 bits each)."""

    cdef CStream data

    def __init__(self, key, hop, encoder, step):
        for name, value, bits in (("key", key, 64), ("hop", hop, 16), ("encoder", encoder, 32), ("step", step, 32)):
            if not 0 <= value < 1 << bits:
                raise ValueError(f"{name}: got {value}, expected an unsigned integer of {bits} bits")
        self.data = CStream(key & 0xffffffff, key >> 32, hop, encoder, step)


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
    with nogil:
        c_random16(stream.data, first, n, &out[0])


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


# --- levels ---


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
    def values(self):
        """The level of every code: float32, 2**bits of them."""
        return np.array([self.data.value[code] for code in range(1 << self.data.bits)], np.float32)


def levels_nbytes(uint64_t start, size_t n, uint64_t bucket, int bits):
    """The bytes of n elements from the global index `start` in buckets of `bucket` elements."""
    if not 1 <= bits <= 8:
        raise ValueError(f"bits: got {bits}, expected 1 to 8")
    return c_levels_nbytes(n, bits, grid_of(start, bucket, 1))


def levels_encode(const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None,
                  Levels levels not None, bint l2, uint64_t start, uint64_t bucket, Stream stream not None):
    """wire = the message of x + e, r = the error; 1 if a value or a bucket's norm is not finite, else 0."""
    cdef size_t n = x.shape[0]
    cdef Grid grid = grid_of(start, bucket, 1)
    require_errors(e, r, n)
    require("bytes of wire", wire.shape[0], c_levels_nbytes(n, levels.data.bits, grid))
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int bad
    with nogil:
        bad = c_levels_encode(x_at, e_at, r_at, wire_at, n, levels.data, l2, grid, stream.data)
    return bad


cdef Grid levels_grid(const uint8_t[::1] wire, size_t n, Levels levels, uint64_t start, uint64_t bucket) except *:
    cdef Grid grid = grid_of(start, bucket, 1)
    cdef size_t expected = c_levels_nbytes(n, levels.data.bits, grid)
    if <size_t> wire.shape[0] != expected:
        raise WireError(f"{n} elements in buckets of {bucket}: got {wire.shape[0]} bytes, expected {expected}")
    return grid


def levels_decode(const uint8_t[::1] wire not None, float[::1] y not None, Levels levels not None, uint64_t start,
                  uint64_t bucket, float scale=1.0):
    """y = the decoded values * scale."""
    cdef size_t n = y.shape[0]
    cdef Grid grid = levels_grid(wire, n, levels, start, bucket)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_levels_decode(wire_at, y_at, n, levels.data, grid, scale)
    if bad:
        raise WireError("a bucket with a norm that is negative or not finite")


def levels_decode_add(const uint8_t[::1] wire not None, float[::1] y not None, Levels levels not None, uint64_t start,
                      uint64_t bucket):
    """y += the decoded values."""
    cdef size_t n = y.shape[0]
    cdef Grid grid = levels_grid(wire, n, levels, start, bucket)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_levels_decode_add(wire_at, y_at, n, levels.data, grid)
    if bad:
        raise WireError("a bucket with a norm that is negative or not finite")


# --- selection and adaptive ---
