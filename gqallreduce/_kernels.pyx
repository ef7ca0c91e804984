# distutils: language = c++
"""Doors to the C++ kernels: check sizes, drop the GIL, call."""

cdef extern from "gq/kernels.hpp" namespace "gq" nogil:
    cdef struct Grid:
        unsigned long long start, run, parts
    cdef struct Kernels:
        const char* name
    const Kernels& kernels()
    bint use_level(const char* name)
    const char* best_level()


def simd_level():
    return kernels().name.decode()


def use_simd_level(str name):
    if not use_level(name.encode()):
        raise ValueError(f"SIMD level {name!r} is not known or not supported by this CPU; best: {best_level().decode()}")


# --- casts ---

# --- one bit ---

# --- levels ---

# --- selection and adaptive ---
