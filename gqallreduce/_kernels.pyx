# distutils: language = c++
"""Doors to the C++ kernels: check sizes, drop the GIL, call.

`streaming`: the array written (r or y) is large and not read again soon; it changes no value.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

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
    unsigned int kUsualControl
    unsigned int c_float_control "gq::float_control" ()
    void c_set_float_control "gq::set_float_control" (unsigned int word)

cdef extern from "gq/doors.hpp" namespace "gq" nogil:
    int c_widen "gq::widen" (const uint8_t* source, float* y, size_t n, int format)
    int c_narrow "gq::narrow" (const float* x, uint8_t* target, size_t n, int format)
    int c_add_finite "gq::add_finite" (const float* x, const float* e, uint8_t* y, size_t n)
    int c_scale "gq::scale" (float* y, float factor, size_t n)
    void c_add "gq::add" (const uint8_t* wire, float* y, size_t n)
    int c_all_finite "gq::all_finite" (const float* x, size_t n)

    size_t c_onebit_nbytes "gq::onebit_nbytes" (const Grid& grid, size_t n)
    int c_onebit_encode "gq::onebit_encode" (
        const float* x, const float* e, float* r, uint8_t* wire, size_t n, const Grid& grid)
    int c_onebit_decode "gq::onebit_decode" (const uint8_t* wire, float* y, size_t n, const Grid& grid, float scale)
    int c_onebit_decode_add "gq::onebit_decode_add" (const uint8_t* wire, float* y, size_t n, const Grid& grid)

    size_t c_collect "gq::collect" (
        const float* x, const float* e, float* r, size_t n, uint32_t floor_bits, uint32_t* index, float* value,
        size_t capacity, bint streaming)
    void c_histogram "gq::histogram" (const float* x, const float* e, size_t n, int64_t* counts)
    uint32_t c_kth "gq::kth" (const float* value, size_t n, size_t k, int sign, size_t* above)
    size_t c_keep "gq::keep" (
        uint32_t* index, float* value, size_t n, uint32_t positive_bits, uint32_t negative_bits, int64_t* ties,
        bint joint)
    void c_count_signs "gq::count_signs" (const float* v, size_t n, size_t* positives, size_t* negatives)

    size_t c_select_bound "gq::select_bound" (const Grid& grid, size_t n, size_t pi)
    int64_t c_select_columns "gq::select_columns" (
        const float* x, const float* e, float* r, size_t n, const Grid& grid, size_t pi, bint separate,
        uint32_t* index, float* value)

    int64_t c_adaptive_encode "gq::adaptive_encode" (
        const uint32_t* index, const float* value, size_t count, float* r, uint8_t* wire, size_t n,
        const Grid& grid)
    int64_t c_adaptive_decode "gq::adaptive_decode" (
        const uint8_t* wire, size_t nbytes, float* y, size_t n, const Grid& grid, float scale, bint streaming)
    int64_t c_adaptive_decode_add "gq::adaptive_decode_add" (
        const uint8_t* wire, size_t nbytes, float* y, size_t n, const Grid& grid)

cdef extern from "gq/grid.hpp" namespace "gq" nogil:
    size_t unit_count(const Grid& grid, size_t n)

cdef extern from "gq/plain_doors.hpp" namespace "gq" nogil:
    int c_plain_encode "gq::plain_encode" (
        const float* x, const float* e, float* r, uint8_t* wire, size_t n, int format)
    int c_plain_decode "gq::plain_decode" (
        const uint8_t* wire, float* y, size_t n, int format, float scale, bint add, bint streaming)

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

cdef extern from "gq/integers_doors.hpp" namespace "gq" nogil:
    cdef struct CLift "gq::Lift":
        float unit
        bint ternary
    void c_measure "gq::measure" (
        const float* x, const float* e, size_t n, bint squares, uint32_t* largest, double* total)
    size_t c_integers_bound "gq::integers_bound" (size_t n, uint32_t terms)
    int c_integers_lift "gq::integers_lift" (
        const float* x, const float* e, float* r, float* m, size_t n, const CLift& lift, uint64_t first,
        const CStream& stream, uint64_t* clipped)
    int64_t c_integers_encode_own "gq::integers_encode_own" (
        const float* x, const float* e, float* r, uint8_t* wire, size_t n, const CLift& lift, uint64_t first,
        const CStream& stream, uint64_t* clipped)
    int64_t c_integers_encode "gq::integers_encode" (
        const float* m, uint8_t* wire, size_t n, float unit, uint32_t terms)
    int64_t c_integers_decode "gq::integers_decode" (
        const uint8_t* wire, size_t nbytes, float* y, size_t n, float unit, bint whole, float scale, bint add,
        uint32_t terms)


# A float32 array, or float32s as bytes at any address.
ctypedef fused FloatsOrBytes:
    float
    uint8_t


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


USUAL_FLOAT_CONTROL = kUsualControl


def float_control():
    """The calling thread's floating-point control word (MXCSR): rounding, flushing of denormals, exceptions."""
    return c_float_control()


def set_float_control(unsigned int word):
    """Set it, of the calling thread alone; USUAL_FLOAT_CONTROL is that of IEEE 754."""
    if word > 0xFFFF:
        raise ValueError(f"control word: got {word:#x}, expected at most 0xffff")
    c_set_float_control(word)


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


cdef size_t itemsize(int format) except 0:
    if not 0 <= format <= 2:
        raise ValueError(f"format: got {format}, expected 0 (float16), 1 (bfloat16) or 2 (float64)")
    return 8 if format == 2 else 2


def widen(const uint8_t[::1] source not None, float[::1] y not None, int format):
    """y = source, of format 0 float16, 1 bfloat16, 2 float64; 1 if a result is not finite, else 0."""
    cdef size_t n = y.shape[0]
    require("bytes of source", source.shape[0], n * itemsize(format))
    cdef const uint8_t* source_at = bytes_in(source)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_widen(source_at, y_at, n, format)
    return bad


def narrow(const float[::1] x not None, uint8_t[::1] target not None, int format):
    """target = x rounded to the format, to nearest even; 1 if a result is not finite, else 0."""
    cdef size_t n = x.shape[0]
    require("bytes of target", target.shape[0], n * itemsize(format))
    cdef const float* x_at = in_of(x)
    cdef uint8_t* target_at = bytes_out(target)
    cdef int bad
    with nogil:
        bad = c_narrow(x_at, target_at, n, format)
    return bad


def add_finite(const float[::1] x not None, const float[::1] e, FloatsOrBytes[::1] y not None):
    """y = x + e, or x if e is None; y is float32 or bytes. 1 if a result is not finite, else 0."""
    cdef size_t n = x.shape[0]
    require_errors(e, None, n)
    require("bytes of y", y.shape[0] * sizeof(FloatsOrBytes), n * sizeof(float))
    if n == 0:
        return 0
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef uint8_t* y_at = <uint8_t*> &y[0]
    cdef int bad
    with nogil:
        bad = c_add_finite(x_at, e_at, y_at, n)
    return bad


def add(const float[::1] a not None, float[::1] y not None):
    """y += a."""
    cdef size_t n = y.shape[0]
    require("elements of a", a.shape[0], n)
    cdef const uint8_t* a_at = <const uint8_t*> in_of(a)
    cdef float* y_at = out_of(y)
    with nogil:
        c_add(a_at, y_at, n)


def add_wire(const uint8_t[::1] wire not None, float[::1] y not None):
    """y += the float32s in the bytes `wire`."""
    cdef size_t n = y.shape[0]
    if <size_t> wire.shape[0] != n * sizeof(float):
        raise WireError(f"got {wire.shape[0]} bytes, expected {n * sizeof(float)}")
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    with nogil:
        c_add(wire_at, y_at, n)


def scale(float[::1] y not None, float factor):
    """y *= factor; 1 if a result is not finite, else 0."""
    cdef size_t n = y.shape[0]
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_scale(y_at, factor, n)
    return bad


def all_finite(const float[::1] x not None):
    cdef size_t n = x.shape[0]
    cdef const float* x_at = in_of(x)
    cdef bint finite
    with nogil:
        finite = c_all_finite(x_at, n)
    return finite


# --- plain numbers ---


cdef int require_plain(size_t nbytes, size_t n, int format) except -1:
    if format not in (0, 1, 3):
        raise ValueError(f"format: got {format}, expected 0 (float16), 1 (bfloat16) or 3 (float32)")
    return require("bytes of wire", nbytes, n * (4 if format == 3 else 2))


def plain_encode(
    const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None, int format
):
    """wire = x + e rounded to the format, r (if given) what that lost; 1 if a sent value is not finite, else 0."""
    cdef size_t n = x.shape[0]
    require_errors(e, r, n)
    require_plain(wire.shape[0], n, format)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int bad
    with nogil:
        bad = c_plain_encode(x_at, e_at, r_at, wire_at, n, format)
    return bad


def plain_decode(const uint8_t[::1] wire not None, float[::1] y not None, int format, float scale, bint add,
                 bint streaming=False):
    """y = scale * wire, or y += wire; WireError if a received value is not finite."""
    cdef size_t n = y.shape[0]
    require_plain(wire.shape[0], n, format)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_plain_decode(wire_at, y_at, n, format, scale, add, streaming)
    if bad:
        raise WireError("a value on the wire is not finite")


# --- one bit ---


def onebit_nbytes(uint64_t start, size_t n, uint64_t run, uint64_t parts):
    """The bytes of the one-bit message of n elements."""
    return c_onebit_nbytes(grid_of(start, run, parts), n)


def onebit_encode(const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None,
                  uint64_t start, uint64_t run, uint64_t parts):
    """wire = the one-bit message of x + e, r = the error; 1 if a value is not finite, else 0."""
    cdef size_t n = x.shape[0]
    cdef Grid grid = grid_of(start, run, parts)
    require_errors(e, r, n)
    require("bytes of wire", wire.shape[0], c_onebit_nbytes(grid, n))
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int bad
    with nogil:
        bad = c_onebit_encode(x_at, e_at, r_at, wire_at, n, grid)
    return bad


cdef Grid onebit_grid(const uint8_t[::1] wire, size_t n, uint64_t start, uint64_t run, uint64_t parts) except *:
    cdef Grid grid = grid_of(start, run, parts)
    cdef size_t expected = c_onebit_nbytes(grid, n)
    if <size_t> wire.shape[0] != expected:
        raise WireError(f"a one-bit message of {n} elements: got {wire.shape[0]} bytes, expected {expected}")
    return grid


def onebit_decode(const uint8_t[::1] wire not None, float[::1] y not None,
                  uint64_t start, uint64_t run, uint64_t parts, float scale=1.0):
    """y = the decoded values * scale."""
    cdef size_t n = y.shape[0]
    cdef Grid grid = onebit_grid(wire, n, start, run, parts)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_onebit_decode(wire_at, y_at, n, grid, scale)
    if bad:
        raise WireError("a one-bit message with a mean that is not finite")


def onebit_decode_add(const uint8_t[::1] wire not None, float[::1] y not None,
                      uint64_t start, uint64_t run, uint64_t parts):
    """y += the decoded values."""
    cdef size_t n = y.shape[0]
    cdef Grid grid = onebit_grid(wire, n, start, run, parts)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int bad
    with nogil:
        bad = c_onebit_decode_add(wire_at, y_at, n, grid)
    if bad:
        raise WireError("a one-bit message with a mean that is not finite")
# --- random bits and packed codes ---


cdef class Stream:
    """Which random bits: a 64-bit key of the collective, the hop (16 bits), the encoder and the step (32 bits each).

    clipped
        how many values the calls that drew from it had to clip, since they were larger than what can be sent.
    """

    cdef CStream data
    cdef readonly uint64_t clipped

    def __init__(self, key, hop, encoder, step):
        for name, value, bits in (("key", key, 64), ("hop", hop, 16), ("encoder", encoder, 32), ("step", step, 32)):
            if not 0 <= value < 1 << bits:
                raise ValueError(f"{name}: got {value}, expected an unsigned integer of {bits} bits")
        self.data = CStream(key & 0xffffffff, key >> 32, hop, encoder, step)

    @property
    def words(self):
        """key (low, high), hop, encoder, step, as kernels take them one by one."""
        return self.data.key0, self.data.key1, self.data.hop, self.data.encoder, self.data.step


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
    def packed(self):
        """All of it as a kernel reads it from memory: the bytes of the C++ structure."""
        return (<const char*> &self.data)[:sizeof(CLevels)]

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


# --- integers ---


def measure(const float[::1] x not None, const float[::1] e, bint squares):
    """(max |v|, sum of v * v by the sum rule or 0.0 if not asked for), v = x + e; not finite if a value is not."""
    cdef size_t n = x.shape[0]
    require_errors(e, None, n)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef uint32_t largest = 0
    cdef double total = 0
    with nogil:
        c_measure(x_at, e_at, n, squares, &largest, &total)
    return float(np.uint32(largest).view(np.float32)), total


cdef uint32_t require_terms(uint32_t terms) except 0:
    if not 1 <= terms < 1 << 24:
        raise ValueError(f"terms of a sum: got {terms}, expected 1 to 2^24 - 1")
    return terms


def integers_bound(size_t n, uint32_t terms):
    """The most bytes that a region of n integers up to `terms` takes."""
    return c_integers_bound(n, require_terms(terms))


def integers_lift(const float[::1] x not None, const float[::1] e, float[::1] r, float[::1] m not None, float unit,
                  bint ternary, uint64_t first, Stream stream not None):
    """m = x + e as multiples of the unit (m may be x), r (if given) the error; `first`: the global index.

    Returns 1 if a value is not finite, which then stays in m, else 0.
    """
    cdef size_t n = x.shape[0]
    require_errors(e, r, n)
    require("elements of m", m.shape[0], n)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef float* m_at = out_of(m)
    cdef CLift lift = CLift(unit, ternary)
    cdef int bad
    with nogil:
        bad = c_integers_lift(x_at, e_at, r_at, m_at, n, lift, first, stream.data, &stream.clipped)
    return bad


def integers_encode_own(const float[::1] x not None, const float[::1] e, float[::1] r, uint8_t[::1] wire not None,
                        float unit, bint ternary, uint64_t first, Stream stream not None):
    """wire = the multiples of the unit that x + e become, r (if given) the error; `first`: the global index.

    Returns the bytes written; -1 if a value is not finite.
    """
    cdef size_t n = x.shape[0]
    require_errors(e, r, n)
    if <size_t> wire.shape[0] < c_integers_bound(n, 1):
        raise ValueError(f"bytes of wire: got {wire.shape[0]}, expected at least {c_integers_bound(n, 1)}")
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef CLift lift = CLift(unit, ternary)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_integers_encode_own(x_at, e_at, r_at, wire_at, n, lift, first, stream.data, &stream.clipped)
    return nbytes


def integers_encode(const float[::1] m not None, uint8_t[::1] wire not None, float unit, uint32_t terms):
    """wire = the integers in m. Returns the bytes written; -1 if one times the unit leaves float32.

    WireError if one is larger than `terms`: a message that came held more than its terms allow.
    """
    cdef size_t n = m.shape[0]
    cdef size_t bound = integers_bound(n, terms)
    if <size_t> wire.shape[0] < bound:
        raise ValueError(f"bytes of wire: got {wire.shape[0]}, expected at least {bound}")
    cdef const float* m_at = in_of(m)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_integers_encode(m_at, wire_at, n, unit, terms)
    if nbytes == -2:
        raise WireError(f"got a sum larger than {terms}, the number of its terms, each of which is -1, 0 or 1")
    return nbytes


def integers_decode(const uint8_t[::1] wire not None, float[::1] y not None, float unit, uint32_t terms, bint whole,
                    float scale=1.0, bint add=False):
    """y = the decoded values * scale, or y += them; as integers if `whole`, else times the unit.

    The unit on the wire must be `unit`, if that is not negative, and no integer larger than `terms`. `wire` may go on
    after the message. Returns the bytes of the message.
    """
    cdef size_t n = y.shape[0]
    cdef size_t length = wire.shape[0]
    require_terms(terms)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_integers_decode(wire_at, length, y_at, n, unit, whole, scale, add, terms)
    if nbytes < 0:
        raise WireError(f"not {n} integers of at most {terms} in {length} bytes")
    return nbytes


# --- selection and adaptive ---


cdef uint32_t* indices(uint32_t[::1] view) noexcept:
    if view.shape[0] == 0:
        return NULL
    return &view[0]


cdef int require_countable(size_t n) except -1:
    if n > 0xFFFFFFFF:
        raise ValueError(f"got {n} elements, expected at most 2^32 - 1: an index has 32 bits")
    return 0


def collect(const float[::1] x not None, const float[::1] e, float[::1] r, uint32_t floor_bits,
            uint32_t[::1] index_out not None, float[::1] value_out not None, bint streaming=False):
    """Form v = x + e (in r, if given) and list (i, v[i]) for all |v[i]| whose bits are >= floor_bits, i ascending.

    Returns how many there are; more than there is room for if they were not all stored.
    """
    cdef size_t n = x.shape[0]
    cdef size_t capacity = index_out.shape[0]
    require_countable(n)
    require_errors(e, r, n)
    require("elements of value_out", value_out.shape[0], capacity)
    if floor_bits == 0:
        raise ValueError("floor_bits: got 0, expected at least 1")
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint32_t* index_at = indices(index_out)
    cdef float* value_at = out_of(value_out)
    cdef size_t count
    with nogil:
        count = c_collect(x_at, e_at, r_at, n, floor_bits, index_at, value_at, capacity, streaming)
    return count


def histogram(const float[::1] x not None, const float[::1] e, int64_t[::1] counts not None):
    """Add to the 4096 counts how many |x + e| have each value of their upper 12 bits (those above bit 19)."""
    cdef size_t n = x.shape[0]
    require_errors(e, None, n)
    require("counts", counts.shape[0], 4096)
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef int64_t* counts_at = &counts[0]
    with nogil:
        c_histogram(x_at, e_at, n, counts_at)


def kth(const float[::1] value not None, size_t k, int sign):
    """(bits of the k-th largest |v|, how many are strictly above) of the nonzero v of that sign (0 both, 1, -1)."""
    cdef size_t n = value.shape[0]
    require_countable(n)
    cdef const float* value_at = in_of(value)
    cdef size_t above = 0
    cdef uint32_t bits = 0
    with nogil:
        if k > 0:
            bits = c_kth(value_at, n, k, sign, &above)
    if bits == 0:
        raise ValueError(f"the list has no {k}-th largest value of sign {sign}")
    return bits, above


def keep(uint32_t[::1] index not None, float[::1] value not None, size_t count,
         uint32_t threshold_positive_bits, uint32_t threshold_negative_bits, int64_t[::1] ties not None, bint joint):
    """Keep, in place and in order, those of the first `count` entries that are above their sign's threshold.

    Of those equal to it as many stay as ties[0] (positive; or all, if joint) and ties[1] (negative) say, which are
    decremented. Returns the new count.
    """
    require("elements of value", value.shape[0], index.shape[0])
    require("ties", ties.shape[0], 2)
    if count > <size_t> index.shape[0]:
        raise ValueError(f"count: got {count}, expected at most {index.shape[0]}")
    cdef uint32_t* index_at = indices(index)
    cdef float* value_at = out_of(value)
    cdef int64_t* ties_at = &ties[0]
    cdef size_t kept
    with nogil:
        kept = c_keep(
            index_at, value_at, count, threshold_positive_bits, threshold_negative_bits, ties_at, joint)
    return kept


def count_signs(const float[::1] v not None):
    """(how many are > 0, how many are < 0)."""
    cdef size_t n = v.shape[0]
    cdef const float* v_at = in_of(v)
    cdef size_t positives = 0, negatives = 0
    with nogil:
        c_count_signs(v_at, n, &positives, &negatives)
    return positives, negatives


cdef Grid column_grid(uint64_t start, uint64_t run, uint64_t parts) except *:
    cdef Grid grid = grid_of(start, run, parts)
    cdef uint64_t tallest = (run + parts - 1) // parts
    if tallest > 32767:
        raise ValueError(f"height of a column: got {tallest}, expected at most 32767")
    return grid


def adaptive_select_bound(size_t n, uint64_t start, uint64_t run, uint64_t parts, size_t pi):
    """The most values that adaptive_select_columns selects: the sum of max(1, height // pi) over the columns."""
    if pi == 0:
        raise ValueError("pi: got 0, expected at least 1")
    return c_select_bound(grid_of(start, run, parts), n, pi)


def adaptive_select_columns(const float[::1] x not None, const float[::1] e, float[::1] r,
                            uint32_t[::1] index_out not None, float[::1] value_out not None,
                            uint64_t start, uint64_t run, uint64_t parts, size_t pi, bint separate):
    """List exactly max(1, height // pi) nonzero v = x + e of each column (fewer if fewer exist), the largest.

    Ties go by memory order. v is left in r, if given. Returns how many; -1 if a value is not finite.
    """
    cdef size_t n = x.shape[0]
    cdef Grid grid = column_grid(start, run, parts)
    require_countable(n)
    require_errors(e, r, n)
    require("elements of value_out", value_out.shape[0], index_out.shape[0])
    cdef size_t bound = adaptive_select_bound(n, start, run, parts, pi)
    if <size_t> index_out.shape[0] < bound:
        raise ValueError(f"room in index_out: got {index_out.shape[0]}, expected at least {bound}")
    cdef const float* x_at = in_of(x)
    cdef const float* e_at = in_of(e)
    cdef float* r_at = out_of(r)
    cdef uint32_t* index_at = indices(index_out)
    cdef float* value_at = out_of(value_out)
    cdef int64_t count
    with nogil:
        count = c_select_columns(x_at, e_at, r_at, n, grid, pi, separate, index_at, value_at)
    return count


def adaptive_encode(const uint32_t[::1] index not None, const float[::1] value not None, float[::1] r,
                    uint8_t[::1] wire not None, size_t n, uint64_t start, uint64_t run, uint64_t parts):
    """wire = the message of the kept (index, value) of n elements, index ascending; r, which holds v, the error.

    Returns the bytes written; -1 if a value is not finite.
    """
    cdef size_t count = index.shape[0]
    cdef Grid grid = column_grid(start, run, parts)
    require("elements of value", value.shape[0], count)
    require_errors(None, r, n)
    cdef size_t needed = 12 * unit_count(grid, n) + 4 + 2 * count
    if <size_t> wire.shape[0] < needed:
        raise ValueError(f"bytes of wire: got {wire.shape[0]}, expected at least {needed}")
    cdef const uint32_t* index_at = NULL
    if count > 0:
        index_at = &index[0]
    cdef const float* value_at = in_of(value)
    cdef float* r_at = out_of(r)
    cdef uint8_t* wire_at = bytes_out(wire)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_adaptive_encode(index_at, value_at, count, r_at, wire_at, n, grid)
    return nbytes


def adaptive_decode(const uint8_t[::1] wire not None, float[::1] y not None,
                    uint64_t start, uint64_t run, uint64_t parts, float scale=1.0, bint streaming=False):
    """y = the decoded values * scale; `wire` may go on after the message. Returns the bytes of the message."""
    cdef size_t n = y.shape[0]
    cdef size_t length = wire.shape[0]
    cdef Grid grid = column_grid(start, run, parts)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_adaptive_decode(wire_at, length, y_at, n, grid, scale, streaming)
    if nbytes < 0:
        raise WireError(f"not an adaptive message of {n} elements in {length} bytes")
    return nbytes


def adaptive_decode_add(const uint8_t[::1] wire not None, float[::1] y not None,
                        uint64_t start, uint64_t run, uint64_t parts):
    """y += the decoded values; `wire` may go on after the message. Returns the bytes of the message."""
    cdef size_t n = y.shape[0]
    cdef size_t length = wire.shape[0]
    cdef Grid grid = column_grid(start, run, parts)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef float* y_at = out_of(y)
    cdef int64_t nbytes
    with nogil:
        nbytes = c_adaptive_decode_add(wire_at, length, y_at, n, grid)
    if nbytes < 0:
        raise WireError(f"not an adaptive message of {n} elements in {length} bytes")
    return nbytes
