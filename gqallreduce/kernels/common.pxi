"""What all doors use: the settings of the kernels, tables of regions, pointers into arrays, checks of sizes."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp.vector cimport vector

import numpy as np


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
    """The calling thread's floating-point control word (MXCSR, FPCR): rounding, flushing of denormals, exceptions."""
    return c_float_control()


def set_float_control(unsigned int word):
    """Set it, of the calling thread alone; USUAL_FLOAT_CONTROL is that of IEEE 754."""
    if word > kLargestControl:
        raise ValueError(f"control word: got {word:#x}, expected at most {kLargestControl:#x}")
    c_set_float_control(word)


def float_control_is_usual():
    """Is it that of IEEE 754, but for flags of what has happened?"""
    return c_float_control_is_usual()


cdef class Regions:
    """A compiled table of regions, from rows of (size, start, run, parts, segment).

    size, start
        elements of the region, from which one of its tensor on.
    run, parts
        the grid that its units lie on, see coding/layout.py.
    segment
        number of the tensor in a call on several; 0 in a call on one.
    """

    cdef vector[CRegion] rows_
    cdef CRegions table
    cdef object sizes_, segments_
    # of all together; the largest of each
    cdef readonly size_t size
    cdef size_t largest, tallest, most_parts, segment_count

    def __cinit__(self, rows):
        cdef int64_t size, start, run, parts, segment
        for size, start, run, parts, segment in rows:
            if size < 0 or start < 0 or segment < 0:
                raise ValueError(f"a region of {size} elements from {start} on in segment {segment}")
            if not 1 <= parts <= run:
                raise ValueError(f"a run of {run} elements cannot have {parts} parts")
            self.append(size, start, run, parts, segment)
        self.table = CRegions(self.rows_.data(), self.rows_.size())

    cdef int append(self, size_t size, uint64_t start, uint64_t run, uint64_t parts, uint64_t segment) except -1:
        if self.size + size >> 63:
            raise ValueError("the regions have more than 2^63 elements together")
        self.rows_.push_back(CRegion(size, Grid(start, run, parts), segment))
        self.size += size
        self.largest = max(self.largest, size)
        self.tallest = max(self.tallest, (run - 1) // parts + 1)
        self.most_parts = max(self.most_parts, parts)
        self.segment_count = max(self.segment_count, segment + 1)
        return 0

    def __len__(self):
        return self.rows_.size()

    def __repr__(self):
        return f"Regions({list(self.rows)})"

    @property
    def rows(self):
        """What it was made from."""
        return tuple([
            (row.size, row.grid.start, row.grid.run, row.grid.parts, row.segment) for row in self.rows_])

    @property
    def sizes(self):
        """The elements of each region, int64."""
        if self.sizes_ is None:
            self.sizes_ = np.array([row.size for row in self.rows_], np.int64)
        return self.sizes_

    @property
    def segments(self):
        """The segment of each region, int64: numbers by segment, indexed by it, are numbers by region."""
        if self.segments_ is None:
            self.segments_ = np.array([row.segment for row in self.rows_], np.int64)
        return self.segments_


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


cdef int require_values(const float[::1] x, const float[::1] e, float[::1] r, Regions regions) except -1:
    require("elements of x", x.shape[0], regions.size)
    return require_errors(e, r, regions.size)
