"""What every codec is held to, as functions: one message encoded and decoded with guards around all that is lent."""

import functools

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding.codec import NOT_FINITE
from gqallreduce.coding.layout import Grid, Region
from gqallreduce.coding.preparing import Parts, alone

GUARD = 67
STREAM = _kernels.Stream(0x0123456789ABCDEF, 3, 5, 7)

# (columns, start, size, total): aligned and not, cut-off units at both ends, less than one unit, runs in parts
PLACES = [
    (Grid(4096), 0, 1000, 1000),
    (Grid(4096), 0, 9001, 9001),
    (Grid(33), 0, 1, 1),
    (Grid(33), 66, 330, 1000),
    (Grid(33), 50, 3, 1000),
    (Grid(33), 65, 2, 1000),
    (Grid(33), 17, 1201, 4000),
    (Grid(70001, 3), 23330, 50000, 140002),
    (Grid(40), 2**33 + 7, 777, 2**34),
]


def region(codec, place) -> Region:
    columns, start, size, total = place
    return Region(start, size, codec.grid(columns), total)


def cuts(found: Region) -> list[int]:
    """The elements, counted in the region, at which its units begin or end."""
    grid, begin, end = found.grid, found.start, found.start + found.size
    inner = [grid.boundary(unit) for unit in range(grid.unit(begin) + 1, grid.unit(end - 1) + 1)] if found.size else []
    return [0, *(cut - begin for cut in inner), found.size]


class Guarded:
    """A vector that begins 67 elements into its memory; `check` fails if anything beside it was touched."""

    def __init__(self, array):
        self.guard = b"\xa5" * (array.itemsize * GUARD)
        self.room = bytearray(self.guard + array.tobytes() + self.guard)
        self.array = np.frombuffer(self.room, array.dtype)[GUARD : GUARD + array.size]

    def check(self) -> None:
        around = self.room[: len(self.guard)] + self.room[-len(self.guard) :]
        assert around == 2 * self.guard, "written outside of what was lent"


def vector(codec, seed: int, size: int, kind: str = "normal") -> np.ndarray:
    """Values in the codec's working dtype; `kind` says how awkward they are."""
    return values(seed, size, kind).astype(codec.working)


@functools.cache
def values(seed: int, size: int, kind: str) -> np.ndarray:
    """The same as float64."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(size)
    if kind == "denormal":
        x *= 1e-39
    elif kind == "huge":
        x = np.clip(x, -1, 1) * 3.3e38
    elif kind == "ties":
        x = np.round(x)
    elif kind == "wide":
        x *= np.exp2(rng.integers(-120, 100, size))
    elif kind == "constant":
        x[:] = -0.7
    elif kind == "zero":
        x = np.where(rng.random(size) < 0.5, 0.0, -0.0)
    elif kind == "one hot":
        x *= 0
        x[size // 2 : size // 2 + 1] = 5
    else:
        assert kind == "normal"
    return x


KINDS = ["normal", "denormal", "huge", "ties", "wide", "constant", "zero", "one hot"]


def encode(codec, x, residual, found: Region, stream=STREAM, feedback=True):
    """(message or NOT_FINITE, new residual or None) of one region, as a call encodes it, with guards around arrays."""
    inputs = [Guarded(x), Guarded(np.zeros(0, np.float32) if residual is None else residual)]
    given = inputs[0].array, None if residual is None else inputs[1].array
    new_residual = Guarded(np.full(x.size, 99, np.float32))
    out = new_residual.array if feedback else None
    wire = Guarded(np.zeros(codec.nbytes_bound([found]), np.uint8))
    selected = select(codec, [(found, *given, out)])[0]
    nbytes = codec.encode(*given, out, wire.array, found, stream, selected)
    for each in (*inputs, new_residual, wire):
        each.check()
    assert same_bits(given[0], x)
    assert residual is None or same_bits(given[1], residual)
    if nbytes == NOT_FINITE:
        return NOT_FINITE, None
    assert 0 <= nbytes <= wire.array.size
    assert nbytes == wire.array.size or not codec.fixed_size
    return wire.array[:nbytes].copy(), out


def select(codec, loaded) -> list:
    """What is chosen of each of [(region, x, residual, new_residual)], None for all."""
    if not codec.prepares:
        return [None] * len(loaded)
    regions = [each[0] for each in loaded]
    parts = Parts(
        regions, lambda found: next(each[1:] for each in loaded if each[0] == found), Workspace(), stream=STREAM
    )
    return alone(codec.prepare(parts)).selected


def decode(codec, wire, found: Region, scale: float = 1.0) -> np.ndarray:
    """What a message of one region stands for: everything is overwritten and nothing else is touched."""
    results = []
    for filler in (np.nan, 1.5):
        y, data = Guarded(np.full(found.size, filler, codec.working)), Guarded(wire)
        assert codec.decode(data.array, y.array, found, scale) == wire.size
        y.check()
        data.check()
        assert same_bits(data.array, wire)
        results.append(y.array)
    assert same_bits(*results)
    return results[0]


def sent(codec, x) -> np.ndarray:
    """What values are after they have been sent, without feedback, as columns of 4096."""
    found = region(codec, (Grid(4096), 0, len(x), len(x)))
    return decode(codec, encode(codec, np.array(x, np.float32), None, found)[0], found)


def decode_add(codec, wire, y, found: Region) -> np.ndarray:
    """y plus what a message stands for."""
    into = Guarded(y)
    assert codec.decode_add(wire, into.array, found) == wire.size
    into.check()
    return into.array


def formed(codec, x, residual) -> np.ndarray:
    """v = x + residual, as every codec forms it: one rounded addition in the working dtype."""
    return x if residual is None else x + residual.astype(codec.working)


def same_bits(a, b) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def sampled(codec, v, found: Region, trials: int) -> np.ndarray:
    """float64[trials, size]: what v decodes to, each time with another step."""
    streams = (_kernels.Stream(77, 1, 2, step) for step in range(trials))
    return np.array([decode(codec, encode(codec, v, None, found, each)[0], found) for each in streams], np.float64)


def scatters(codec, v, found: Region, trials: int, expected: float) -> None:
    """The squared error of v, summed, is `expected` on average: to 7 standard deviations of the mean, and rounding."""
    per_trial = ((sampled(codec, v, found, trials) - v) ** 2).sum(1)
    allowed = 7 * per_trial.std() / np.sqrt(trials) + 1e-5 * (expected + 1e-9)
    assert abs(per_trial.mean() - expected) <= allowed


def bernstein(variance, spread, trials: int, failure: float) -> np.ndarray:
    """t with P(|mean of `trials` - expectation| > t) <= failure, for outcomes at most `spread` from it."""
    log = np.log(2 / failure)
    return np.sqrt(2 * variance * log / trials) + 2 * spread * log / (3 * trials)
