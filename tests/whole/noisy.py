"""The nastiest lawful codec: random, biased, of variable size, and never the same twice on what it decoded itself."""

import struct
from dataclasses import dataclass

import numpy as np

from gqallreduce import WireError, _kernels
from gqallreduce.coding.codec import NOT_FINITE, RegionCodec
from gqallreduce.coding.layout import Grid
from gqallreduce.registry import CODECS


def enter() -> None:
    """Into the registry, for tests only."""
    CODECS["noisy"] = Noisy


def leave() -> None:
    CODECS.pop("noisy", None)


@dataclass(frozen=True)
class Noisy(RegionCodec):
    """Every value times a random factor near 1.1, plus a random length of padding."""

    bucket: int = 5

    name = "noisy"
    source = "tests"
    example = "ring/noisy/ef"

    def grid(self, columns):
        return Grid(self.bucket)

    def nbytes_bound(self, regions):
        return sum(4 * region.size + 2 + 15 for region in regions)

    def encode(self, x, residual, new_residual, wire, region, stream, selected=None):
        v = x if residual is None else x + residual
        random = np.empty(region.size + 1, np.uint16)
        _kernels.random16(stream, region.start, random)
        with np.errstate(over="ignore"):
            sent = v * (np.float32(0.8) + random[:-1].astype(np.float32) * np.float32(2.0**-16 * 0.6))
        sent += np.float32(1e-3) * np.abs(v).max(initial=0)
        if not np.isfinite(sent).all():
            return NOT_FINITE
        padding = int(random[-1]) % 16
        nbytes = 2 + padding + 4 * region.size
        wire[:2] = np.frombuffer(struct.pack("<H", padding), np.uint8)
        wire[2 : 2 + padding] = 0xEE
        wire[2 + padding : nbytes] = sent.view(np.uint8)
        if new_residual is not None:
            np.subtract(v, sent, out=new_residual)
        return nbytes

    def decode(self, wire, y, region, scale=1.0, streaming=False):
        sent, nbytes = self._read(wire, region)
        np.multiply(sent, np.float32(scale), out=y)
        return nbytes

    def decode_add(self, wire, y, region):
        sent, nbytes = self._read(wire, region)
        y += sent
        return nbytes

    def _read(self, wire, region):
        if len(wire) < 2 or wire[0] > 15 or wire[1]:
            raise WireError("no padding")
        begin, end = 2 + int(wire[0]), 2 + int(wire[0]) + 4 * region.size
        if len(wire) < end:
            raise WireError("too short")
        sent = np.frombuffer(wire[begin:end].tobytes(), np.float32)
        if not np.isfinite(sent).all():
            raise WireError("not finite")
        return sent, end
