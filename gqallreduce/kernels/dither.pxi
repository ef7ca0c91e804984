"""Matrices, row by row, as codes of so many bits for each value, with a step for each row."""

from libc.stdint cimport uint8_t, uint64_t

from gqallreduce.errors import WireError


cdef size_t columns_of(size_t elements, size_t rows) except? 0:
    if not rows or not elements or elements % rows:
        raise ValueError(f"{elements} elements, expected those of {rows} whole rows, at least one")
    return elements // rows


def largest_of_rows(const float[::1] x not None, float[::1] largest not None):
    """largest = that of the magnitudes of each row; an infinity where a value is not finite."""
    cdef size_t rows = largest.shape[0], columns = columns_of(x.shape[0], rows)
    cdef const float* x_at = in_of(x)
    cdef float* largest_at = out_of(largest)
    with nogil:
        c_largest_of_rows(x_at, rows, columns, largest_at)


cdef int require_codes(size_t nbytes, size_t n, int bits) except -1:
    require_packed(nbytes, n, bits)
    return require("bytes of codes", nbytes, (n * bits + 7) // 8)


def dither_encode(const float[::1] x not None, const float[::1] step not None, uint8_t[::1] wire not None, int bits,
                  bint nearest, float offset, float most, float meeting, int zero, Stream stream not None,
                  uint64_t begin):
    """wire = the codes of finite values, see csrc/gq/dither.hpp; `begin` is the number of the first one's bits."""
    cdef size_t n = x.shape[0], columns = columns_of(n, step.shape[0])
    require_codes(wire.shape[0], n, bits)
    require("streams", stream.data.size(), 1)
    if not 0 <= zero < 256 or not 0 <= offset <= 255 or not 0 <= most <= 255 or offset + most > 255:
        raise ValueError(f"dither: got offset={offset}, most={most}, zero={zero}, expected codes below 256")
    cdef CDither dither = CDither(bits, nearest, offset, most, meeting, zero)
    cdef const float* x_at = in_of(x)
    cdef const float* step_at = in_of(step)
    cdef uint8_t* wire_at = bytes_out(wire)
    with nogil:
        c_dither_encode(x_at, n, columns, step_at, dither, stream.data[0], begin, wire_at)


def dither_decode(const uint8_t[::1] wire not None, const float[::1] step not None, const float[::1] number not None,
                  float[::1] y not None, int bits, bint shifts, int zero, Stream stream not None, uint64_t begin):
    """y = step * number of the code; with `shifts` as csrc/gq/dither.hpp says."""
    cdef size_t n = y.shape[0], columns = columns_of(n, step.shape[0])
    if <size_t> wire.shape[0] != (n * bits + 7) // 8:
        raise WireError(f"{n} codes of {bits} bits: got {wire.shape[0]} bytes, expected {(n * bits + 7) // 8}")
    require_codes(wire.shape[0], n, bits)
    require("streams", stream.data.size(), 1)
    require("numbers", number.shape[0], 1 << bits)
    cdef const uint8_t* wire_at = bytes_in(wire)
    cdef const float* step_at = in_of(step)
    cdef const float* number_at = in_of(number)
    cdef float* y_at = out_of(y)
    with nogil:
        c_dither_decode(wire_at, n, columns, step_at, number_at, bits, shifts, zero, stream.data[0], begin, y_at)
