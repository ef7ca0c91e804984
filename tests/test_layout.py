"""Where the vector is cut: laws of the grid, columns, pieces and blocks."""

import itertools
import math

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from schemes import CODEC, variants

from gqallreduce import Scheme
from gqallreduce.coding import layout
from gqallreduce.coding.lanes import LANE_BYTES, in_order, lane_count, lanes_in_turn, pieces
from gqallreduce.coding.layout import Form, Grid, Region, blocks, columns, cut

MANY = examples(300)


@st.composite
def grids(draw):
    run = draw(st.integers(1, 10**5))
    return Grid(run, draw(st.integers(1, min(run, 40))))


def nbytes_bound(regions):
    return sum(4 * region.size + 8 * region.units for region in regions)


@given(grids(), st.integers(0, 2**40))
@MANY
def test_a_unit_holds_its_elements(grid, element):
    unit = grid.unit(element)
    assert grid.boundary(unit) <= element < grid.boundary(unit + 1)


@given(grids(), st.integers(0, 10**9))
@MANY
def test_units_follow_each_other_without_gap_and_none_is_empty(grid, unit):
    begin, end = grid.boundary(unit), grid.boundary(unit + 1)
    assert 1 <= end - begin <= grid.tallest()
    assert grid.unit(begin) == grid.unit(end - 1) == unit
    assert grid.tallest() - (end - begin) <= 1 or grid.parts > 1


@given(grids(), st.integers(0, 10**6), st.integers(0, 300))
@MANY
def test_the_count_is_that_of_the_units_met(grid, start, size):
    assert grid.count(start, size) == len({grid.unit(element) for element in range(start, start + size)})
    assert Region(start, size, grid, start + size).units == grid.count(start, size)


@given(st.lists(st.integers(0, 10**5), max_size=4).map(tuple), st.sampled_from("CF"))
@MANY
def test_columns_follow_the_rule(shape, order):
    grid = columns(shape, order)
    if len(shape) < 2:
        assert grid == Grid(4096)
        return
    fastest_first = shape if order == "F" else shape[::-1]
    merged = 1
    for extent in fastest_first:
        merged *= extent
        if merged >= 32:
            break
    assert grid.run == max(merged, 1)
    assert grid.tallest() <= 32767
    assert grid.parts == 1 or grid.run / (grid.parts - 1) > 32767


@pytest.mark.parametrize(
    ("shape", "order", "run", "parts"),
    [
        ((), "C", 4096, 1),
        ((10**6,), "C", 4096, 1),
        ((5, 100), "C", 100, 1),
        ((5, 100), "F", 500, 1),
        ((100, 5), "F", 100, 1),
        ((64, 3, 3, 3), "C", 1728, 1),
        ((64, 8, 3, 3), "C", 72, 1),
        ((7, 31), "C", 217, 1),
        ((7, 32), "C", 32, 1),
        ((2, 2), "C", 4, 1),
        ((1, 1), "F", 1, 1),
        ((3, 32767), "C", 32767, 1),
        ((3, 32768), "C", 32768, 2),
        ((3, 65535), "C", 65535, 3),
        ((0, 5), "C", 1, 1),
    ],
)
def test_known_columns(shape, order, run, parts):
    assert columns(shape, order) == Grid(run, parts)


@given(st.lists(st.integers(1, 300), min_size=2, max_size=3), st.integers(1, layout.MERGED_MOST))
@MANY
def test_short_columns_are_joined_until_they_are_long_enough(shape, least):
    known = columns(tuple(shape), "C")
    found = known.merged(least)
    assert found.run >= least
    assert found.run % known.run == 0
    assert found == known if known.run >= least else found.run - known.run < least
    assert found.tallest() <= layout.COLUMN_MOST


@given(st.integers(0, 10**6), st.integers(1, 70), grids())
@MANY
def test_a_cut_is_between_units_if_there_are_enough(size, number, grid):
    bounds = cut(size, number, grid)
    assert len(bounds) == number + 1
    assert bounds[0] == 0
    assert bounds[-1] == size
    assert bounds == sorted(bounds)
    if grid.count(0, size) >= number:
        assert all(bound == size or grid.boundary(grid.unit(bound)) == bound for bound in bounds)
        held = [grid.count(begin, end - begin) for begin, end in itertools.pairwise(bounds)]
        assert max(held) - min(held) <= 1
    else:
        lengths = [end - begin for begin, end in itertools.pairwise(bounds)]
        assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("size", "bounds"),
    [
        (301, [0, 100, 200, 300, 301]),
        (350, [0, 100, 200, 300, 350]),
        (400, [0, 100, 200, 300, 400]),
        (401, [0, 100, 200, 300, 401]),
        (300, [0, 75, 150, 225, 300]),
    ],
)
def test_as_many_columns_as_pieces_are_not_cut_though_the_last_is_short(size, bounds):
    grid = Grid(100)
    assert cut(size, 4, grid) == bounds
    assert [piece.start for (piece,) in zip(*pieces(size, 4, grid, nbytes_bound), strict=True)] == bounds[:-1]


@given(st.integers(0, 10**5), st.integers(0, 10**6), grids())
@MANY
def test_blocks_cover_and_end_between_units(start, size, grid):
    found = blocks(start, start + size, grid)
    ends = [start, *(end for _, end in found)]
    assert [begin for begin, _ in found] == ends[:-1]
    assert ends[-1] == start + size
    for begin, end in found:
        assert begin < end
        assert end - begin <= layout.BLOCK or grid.unit(begin) == grid.unit(end - 1)
        assert end == start + size or grid.boundary(grid.unit(end)) == end


@given(st.integers(0, 3 * 10**6), st.integers(1, 9), grids())
@MANY
def test_pieces_cover_the_vector_once_and_know_their_regions(size, chunks, grid):
    lanes = pieces(size, chunks, grid, nbytes_bound)
    assert len(lanes) == lane_count(size, chunks, grid, nbytes_bound)
    flat = in_order(lanes)
    assert {id(piece) for lane in lanes for piece in lane} == {id(piece) for piece in flat}
    at = first = 0
    for piece in flat:
        assert piece.start == at
        assert piece.first == first
        assert sum(region.size for region in piece.regions) == piece.size
        assert piece.bound == nbytes_bound(piece.regions)
        assert all(region.total == size and region.grid is grid for region in piece.regions)
        shares = [piece.share(index, 3) for index in range(3)]
        assert [piece.start, *(end for _, end in shares)] == [*(begin for begin, _ in shares), piece.stop]
        at, first = piece.stop, first + len(piece.regions)
    assert at == size


@variants("codec", CODEC)
@pytest.mark.parametrize("chunks", [1, 2, 8])
def test_lanes_keep_messages_long_and_pieces_whole(codec, chunks):
    grid = codec.grid(columns((10**7,), "C"))
    for size in (0, 1, 1000, 10**5, 10**6, 10**7, 10**8):
        lanes = lane_count(size, chunks, grid, codec.nbytes_bound)
        largest = codec.nbytes_bound([Region(0, math.ceil(size / chunks), grid, size)])
        assert 1 <= lanes <= 8
        assert lanes == 1 or largest >= lanes * LANE_BYTES
        assert lanes == 1 or lanes * chunks <= grid.count(0, size)
        assert lanes == min(8, max(1, largest // LANE_BYTES)) or grid.count(0, size) < (lanes + 1) * chunks


@pytest.mark.parametrize(("chunks", "lanes"), [(1, 8), (2, 5), (3, 3), (4, 2), (10, 1), (16, 1)])
def test_no_column_is_cut_for_the_sake_of_lanes(chunks, lanes):
    """Ten columns, long enough for eight lanes whatever the chunks."""
    grid = Grid(10**6)
    assert lane_count(10**7, chunks, grid, nbytes_bound) == lanes
    cuts = [piece.start for lane in pieces(10**7, chunks, grid, nbytes_bound) for piece in lane]
    assert chunks > 10 or all(start % 10**6 == 0 for start in cuts)


def test_lanes_of_sparse_sums_are_counted_by_what_is_usual():
    """Not by all entries of all ranks in one piece: messages would be as much shorter as there are ranks."""
    union, own = (
        Scheme.parse(f"topk(ratio=0.001{more})").codec.bind(Form((10**8,), "C", "float32"), 8)
        for more in (", sums=union", "")
    )
    regions = [Region(0, 10**8 // 8, Grid(1), 10**8)]
    assert own.nbytes_in_lanes(regions) == own.nbytes_bound(regions)
    usual = 6 * 10**5  # an eighth of the entries of each of 8 ranks
    assert union.nbytes_in_lanes(regions) == pytest.approx(usual, rel=0.01)
    assert union.nbytes_bound(regions) > 7 * usual
    cut_to = pieces(10**8, 8, Grid(1), union.nbytes_bound, 0, None, union.nbytes_in_lanes)
    assert len(cut_to) == usual // LANE_BYTES == 4


@given(st.integers(1, 2**40), st.integers(1, 10**5), st.integers(1, 10**9), st.integers(1, 300))
@MANY
def test_lanes_are_as_many_as_keep_the_messages_of_one_below_a_limit(nbytes, held, size, few):
    """The message may stay as long as with one lane until there are `few` lanes."""

    def of(lanes):
        return math.ceil(nbytes / max(1, lanes / few))

    lanes, room = lanes_in_turn(of, held, size), max(16 << 20, 2 * 4 * size)
    assert 1 <= lanes <= 256
    assert lanes == 1 or of(lanes) >= 16 << 10
    assert held * of(lanes) <= room or lanes == 256 or of(lanes + 1) < 16 << 10
    assert lanes == 1 or held * of(1) > room
