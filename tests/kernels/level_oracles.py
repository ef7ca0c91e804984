"""The level codecs by definition, in NumPy: what is on the wire and what it decodes to."""

import itertools
import math
import struct

import numpy as np
from test_bits import oracle_pack

from gqallreduce import _kernels

f32 = np.float32
STREAM = _kernels.Stream(0x0123456789ABCDEF, 7, 11, 13)


def in_units_of(scale, steps, v):
    before = f32(2.0**64) if scale < f32(2.0**-64) else f32(1)
    scaled = scale * before
    inverse = f32(0)
    if scale != 0:
        inverse = steps / scaled
        while inverse * scaled < steps:
            inverse = np.nextafter(inverse, f32(np.inf))
    return (v * before) * inverse


class NormLevels:
    """Levels in units of the norm. `levels` is the object under test, `value` has the level of every code."""

    nearest = False
    reach = 1.0

    def scale(self, norm):
        """(a bucket's scale, its bytes)"""
        return norm, struct.pack("<f", norm)


class Uniform(NormLevels):
    def __init__(self, bits, zero, nearest=False):
        self.bits, self.zero, self.nearest = bits, zero, nearest
        self.levels = _kernels.Levels.uniform(bits, zero).using(nearest)
        center = (1 << (bits - 1)) - 1 if zero else (1 << bits) - 1
        self.stride, self.center = (1, center) if zero else (2, center)
        self.count = 2 * center + 1 if zero else center + 1
        known = np.minimum(np.arange(1 << bits), self.count - 1)
        self.value = f32(known * self.stride - center) * (f32(1) / f32(center))

    def __repr__(self):
        return f"{self.bits}bits-{'zero' if self.zero else 'no_zero'}{'-nearest' * self.nearest}"

    def codes(self, v, scale, random):
        steps = f32(self.center) / f32(self.stride)
        offset, limit = (f32(0), self.center) if self.zero else (f32(0.5), (self.center + 1) // 2)
        z = np.minimum(in_units_of(scale, steps, np.abs(v)) + offset, f32(limit))
        if self.nearest:
            j = np.maximum(np.rint(z).astype(np.int64), int(not self.zero))
        else:
            j = z.astype(np.int64)
            j += random.astype(f32) + f32(0.5) < (z - j.astype(f32)) * f32(65536)
        base, top = (self.center, 2 * self.center) if self.zero else ((self.center - 1) // 2, self.center)
        return np.where(np.signbit(v), top - (base + j), base + j)


def below_and_fraction(levels, y):
    """Of each y the number of the level below, and its place between this one and the next."""
    low = np.clip(np.searchsorted(levels, y, side="right") - 1, 0, len(levels) - 2)
    gap = f32(1) / (levels[1:] - levels[:-1])
    return low, np.minimum((y - levels[low]) * gap[low], f32(1))


class Table(NormLevels):
    def __init__(self, bits, table, nearest=False):
        self.bits, self.table, self.count, self.nearest = bits, table, len(table), nearest
        self.levels = _kernels.Levels.table(bits, table).using(nearest)
        self.value = table[np.minimum(np.arange(1 << bits), self.count - 1)]

    def __repr__(self):
        return f"{self.bits}bits-table{self.count}{'-nearest' * self.nearest}"

    def codes(self, v, scale, random):
        low, fraction = below_and_fraction(
            self.table, np.clip(in_units_of(scale, f32(1), v), self.table[0], self.table[-1])
        )
        return low + (fraction >= 0.5 if self.nearest else random.astype(f32) + f32(0.5) < fraction * f32(65536))


class Floating:
    """Numbers of a small floating-point format; see _kernels.Levels.floating."""

    def __init__(self, bits, mantissa, lowest, last, zero=True, order="ascending", nearest=False, scale="norm"):
        self.bits, self.zero, self.order, self.last = bits, zero, order, last
        self.mantissa, self.nearest, self.scale_rule = mantissa, nearest, scale
        self.levels = _kernels.Levels.floating(bits, mantissa, lowest, last, zero, order).using(nearest, scale)
        whole = 1 << mantissa
        self.magnitude = [number * 2.0 ** (lowest - mantissa) for number in range(whole)]
        for number in range(whole, last + 1):
            self.magnitude.append((1 + number % whole / whole) * 2.0 ** (lowest + number // whole - 1))
        self.reach = self.magnitude[-1]
        self.count = 2 * last + zero
        self.value = np.array([self.level(code) for code in range(1 << bits)], f32)
        self.known = np.array([-m for m in self.magnitude[:0:-1]] + [0.0] * zero + self.magnitude[1:], f32)

    def __repr__(self):
        zero, nearest = "" if self.zero else "-no_zero", "-nearest" * self.nearest
        return f"{self.bits}bits-e-m{self.mantissa}-{self.order}{zero}{nearest}-{self.scale_rule}".replace(" ", "_")

    def level(self, code):
        half = 1 << (self.bits - 1)
        if self.order == "sign and magnitude":
            number, negative = code % half, code >= half
        elif self.order == "two's complement":
            number, negative = (2 * half - code, True) if code >= half else (code, False)
        elif self.zero:
            number, negative = abs(code - self.last), code < self.last
        else:
            number, negative = (self.last - code, True) if code < self.last else (code - self.last + 1, False)
        level = self.magnitude[min(number, self.last)]
        return -level if negative else level

    def code(self, number, negative):
        """The code whose level this is, with its sign; several read alike, but one is written."""
        half = 1 << (self.bits - 1)
        if self.order == "sign and magnitude":
            return number + half * negative
        if self.order == "two's complement":
            return -number % (2 * half) if negative else number
        if self.zero:
            return self.last - number if negative else self.last + number
        return self.last - number if negative else self.last + number - 1

    def scale(self, norm):
        if self.scale_rule == "norm":
            scale = norm / f32(self.reach)
            if scale * f32(self.reach) < norm:
                scale = np.nextafter(scale, f32(np.inf))
            return scale, struct.pack("<f", scale)
        exponent = -127
        if norm > 0:
            exponent = max(math.frexp(norm)[1] - math.frexp(self.reach)[1], -127)
            if self.scale_rule == "power above" and float(norm) > self.reach * 2.0**exponent:
                exponent = min(exponent + 1, 127)
        return f32(2.0**exponent), bytes([exponent + 127])

    def codes(self, v, scale, random):
        y = in_units_of(scale, f32(1), v) if self.scale_rule == "norm" else v * (f32(1) / scale)
        y = np.clip(y, -f32(self.reach), f32(self.reach))
        negative = np.signbit(v)
        if self.nearest:
            number = [self.nearest_number(float(abs(each))) for each in y]
        else:
            low, fraction = below_and_fraction(self.known, y)
            chosen = low + (random.astype(f32) + f32(0.5) < fraction * f32(65536))
            level = self.known[chosen]
            number = np.searchsorted(np.array(self.magnitude, f32), np.abs(level))
            negative = np.where(level == 0, negative, level < 0)
        return np.array([self.code(*each) for each in zip(number, negative, strict=True)], np.int64)

    def nearest_number(self, y):
        """Ties go to the even number; of powers of two, to the larger one, but half of the smallest to zero."""
        magnitude = self.magnitude
        above = next(number for number in range(1, self.last + 1) if y <= magnitude[number])
        if above == 1 and not self.zero:
            return 1
        middle = (magnitude[above - 1] + magnitude[above]) / 2
        even = above % 2 == 0 if self.mantissa else above > 1
        return above if y > middle or (y == middle and even) else above - 1


def sum_of_squares(v):
    """By the sum rule."""
    total = 0.0
    for begin in range(0, len(v), 4096):
        block = v[begin : begin + 4096].astype(np.float64) ** 2
        rows = np.concatenate([block, np.zeros(-len(block) % 32)]).reshape(-1, 32)
        lanes = np.zeros(32)
        for row in rows:
            lanes = lanes + row
        width = 16
        while width:
            lanes = lanes[:width] + lanes[width : 2 * width]
            width //= 2
        total += lanes[0]
    return total


def units(start, n, bucket):
    cuts = [0, *range(bucket - start % bucket, n, bucket), n]
    return [(a, b) for a, b in itertools.pairwise(cuts) if a < b]


def oracle_encode(codec, x, e, l2, start, bucket):
    """The wire, the decoded values, and the errors."""
    v = x if e is None else x + e
    wire, decoded = [], np.empty_like(v)
    random = np.empty(len(v), np.uint16)
    _kernels.random16(STREAM, start, random)  # has tests of its own
    for begin, end in units(start, len(v), bucket):
        part = v[begin:end]
        norm = f32(np.sqrt(sum_of_squares(part))) if l2 else np.abs(part).max()
        scale, written = codec.scale(norm)
        code = codec.codes(part, scale, random[begin:end])
        wire += [written, oracle_pack(code.astype(np.uint8), codec.bits).tobytes()]
        decoded[begin:end] = codec.value[code] * scale
    return b"".join(wire), decoded, v - decoded
