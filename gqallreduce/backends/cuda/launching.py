"""What all launches share: how many threads and blocks, and how a region's geometry is given to kernels.

One file per family says how each operation on arrays of a device becomes launches (casts.py of casts.cu, ...). There,
`launch(family, kernel, blocks, threads, *arguments)` is the device: arrays stand for their address, None for a null
pointer, and NumPy scalars have the kernel's types. x, e (residual before, or None), r (new residual, or None) and y are
float32 arrays, wire uint8, all contiguous. `status` is a uint32 array of one element, into which kernels set bits:
NOT_FINITE, MALFORMED. A launch of no blocks is left out.
"""

from __future__ import annotations

import itertools

import numpy as np

from gqallreduce.coding.layout import Region, Span

NOT_FINITE, MALFORMED = 1, 2

THREADS = 256  # of kernels that work value by value
TEAM_THREADS = 128
_BLOCKS = 4096  # at most, of kernels that work value by value: each thread goes on with what lies one grid further
_SHORT = 1024  # units up to here are worked on by one warp each


def blocks_for(size: int) -> int:
    """Blocks of THREADS threads that take four values each."""
    return min(-(-size // (4 * THREADS)), _BLOCKS)


def by_fours(launch, family: str, kernel: str, size: int, *arguments) -> None:
    if size:
        launch(family, kernel, blocks_for(size), THREADS, *arguments)


def by_units(launch, family: str, kernel: str, region: Region | Span, arguments, *last) -> None:
    """A team of threads for each unit; the kernel is told how many teams share a block."""
    if region.size:
        blocks, teams = blocks_of_teams(region)
        launch(family, kernel, blocks, TEAM_THREADS, *arguments, np.uint32(teams), *last)


def blocks_of_teams(region: Region | Span) -> tuple[int, int]:
    """Blocks of TEAM_THREADS threads, and how many units each works on: one, or four if they are short."""
    teams = 4 if min(region.grid.tallest(), region.size) <= _SHORT else 1
    return -(-region.units // teams), teams


def geometry(region: Region | Span) -> tuple:
    return tuple(np.uint64(number) for number in region.geometry)


def first_units(span: Span, name: str, units_of) -> list[int]:
    """The number of the first unit of each region, and of what would follow the last; counted once and kept."""
    if name not in span.tables:
        span.tables[name] = list(itertools.accumulate(map(units_of, span.regions), initial=0))
    return span.tables[name]


def region_table(span: Span, units_of) -> np.ndarray:
    """(first element, relative to the span; first unit) of each region, and of what would follow the last, in uint64.

    units_of
        units_of(region) is how many units a region has, of whatever kind the kernels go by.
    """
    table = np.zeros((len(span.regions) + 1, 2), np.uint64)
    np.cumsum([(region.size, units_of(region)) for region in span.regions], axis=0, out=table[1:])
    return table
