"""Particulars of adaptive: which values are kept, exactly how many, and at what price."""

import itertools

import numpy as np
import pytest
from contract import KINDS, cuts, decode, encode, formed, region, vector

from gqallreduce import Scheme
from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding import selection
from gqallreduce.coding.layout import BLOCK, Grid, Region, columns
from gqallreduce.coding.preparing import Parts, alone
from gqallreduce.coding.selection import select_largest

VARIANTS = [
    "adaptive(pi=1, column=1)",
    "adaptive(pi=3, signs=separate, column=1)",
    "adaptive(pi=7, scope=column, column=1)",
    "adaptive(pi=5, scope=column, signs=separate, column=100)",
    "adaptive(pi=1, scope=column, column=1)",
    "adaptive(pi=3, coding=golomb)",
]
WHOLE = [VARIANTS[0], VARIANTS[1], VARIANTS[3], VARIANTS[5]]
every_rule = pytest.mark.parametrize("scope", ["matrix", "column"])
every_sign_rule = pytest.mark.parametrize("signs", ["joint", "separate"])


def adaptive(**options):
    return Scheme.parse("adaptive").codec.make({"column": 1, **options})


def largest(v, k, separate) -> np.ndarray:
    """The places of the k largest nonzero values, by a stable sort: ties go to the first in memory."""
    order = [place for place in np.argsort(-np.abs(v), kind="stable") if v[place] != 0]
    if not separate or len(order) <= k:
        return np.sort(np.array(order[:k], int))
    chosen = []
    for sign in (1, -1):
        mine = [place for place in order if np.sign(v[place]) == sign]
        chosen += mine[: k * len(mine) // len(order)]
    rest = [place for place in order if place not in set(chosen)]
    return np.sort(np.array(chosen + rest[: k - len(chosen)], int))


def oracle(codec, v, ends) -> tuple[np.ndarray, np.ndarray]:
    """(places kept, decoded) by the definition."""
    separate = codec.signs == "separate"
    if codec.scope == "matrix":
        kept = largest(v, max(1, v.size // codec.pi), separate)
    else:
        spans = itertools.pairwise(ends)
        kept = np.concatenate(
            [begin + largest(v[begin:end], max(1, (end - begin) // codec.pi), separate) for begin, end in spans]
        )
    decoded = np.zeros(v.size, np.float32)
    for begin, end in itertools.pairwise(ends):
        places = kept[(kept >= begin) & (kept < end)].astype(int)
        for sign in (1, -1):
            mine = places[np.sign(v[places]) == sign]
            if mine.size:
                decoded[mine] = v[mine].astype(np.float64).mean()
    return kept, decoded


@every_rule
@every_sign_rule
@pytest.mark.parametrize("pi", [1, 2, 7, 64, 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_the_values_kept_and_their_means_are_those_of_the_definition(scope, signs, pi, kind):
    codec = adaptive(pi=pi, scope=scope, signs=signs)
    found = region(codec, (Grid(33), 17, 1201, 1201))
    x, residual = vector(codec, 1, found.size, kind), vector(codec, 2, found.size, "ties")
    for given in (None, residual):
        v = formed(codec, x, given)
        wire, _ = encode(codec, x, given, found)
        kept, expected = oracle(codec, v, cuts(found))
        decoded = decode(codec, wire, found)
        np.testing.assert_allclose(decoded, expected, rtol=3e-7, atol=1e-44)
        entries = (wire.size - 12 * found.units - 4) // 2
        assert entries == kept.size
        assert entries == min(max(1, found.size // pi), np.count_nonzero(v)) or scope == "column"


@every_rule
@pytest.mark.parametrize("pi", [1, 3, 64])
def test_exactly_one_value_in_pi_travels_whatever_the_ties(scope, pi):
    codec = adaptive(pi=pi, scope=scope)
    found = region(codec, (Grid(50), 0, 1000, 1000))
    for v in (np.ones(1000), -np.ones(1000), np.tile([1, -1], 500), np.round(vector(codec, 1, 1000))):
        wire, _ = encode(codec, v.astype(np.float32), None, found)
        per_range = 1000 // pi if scope == "matrix" else 20 * max(1, 50 // pi)
        entries = (wire.size - 12 * 20 - 4) // 2
        assert entries <= per_range
        assert entries == per_range or np.count_nonzero(v) < 1000


def test_of_equal_values_the_first_in_memory_travel():
    codec = adaptive(pi=4)
    found = region(codec, (Grid(33), 0, 100, 100))
    decoded = decode(codec, encode(codec, np.full(100, -2, np.float32), None, found)[0], found)
    np.testing.assert_array_equal(decoded, [-2] * 25 + [0] * 75)


def test_no_other_values_for_the_regions_have_a_smaller_error():
    codec = adaptive(pi=5)
    found = region(codec, (Grid(100), 0, 300, 300))
    v = vector(codec, 3, 300)
    decoded = decode(codec, encode(codec, v, None, found)[0], found).astype(np.float64)
    assert len(set(decoded.tolist())) == 7
    for begin in (0, 100, 200):
        for sign in (1, -1):
            places = begin + np.flatnonzero(np.sign(decoded[begin : begin + 100]) == sign)
            best = ((v[places] - decoded[places]) ** 2).sum()
            for nudge in (1e-3, -1e-3, 0.1, -0.1):
                assert ((v[places] - decoded[places] - nudge) ** 2).sum() > best


@every_sign_rule
@pytest.mark.parametrize(("run", "pi"), [(65537, 3), (32768, 2), (98302, 5), (65537, 1)])
def test_the_bound_holds_for_columns_of_two_heights(run, pi, signs):
    """A run that is cut into nearly equal columns: the bound takes the taller ones."""
    codec, grid = adaptive(pi=pi, scope="column", signs=signs), columns((2, run), "C")
    for units in (1, 2, grid.parts, 2 * grid.parts):
        found = Region(0, grid.boundary(units), grid, 2 * run)
        v = vector(codec, 1, found.size)
        wire, _ = encode(codec, v, None, found)
        heights = np.diff(cuts(found))
        assert wire.size == 12 * units + 4 + 2 * sum(max(1, height // pi) for height in heights)


RATIOS = {(64, 32): 15.9, (256, 32): 36.5, (256, 64): 51.2, (1024, 32): 53.9, (1024, 64): 93.1, (4096, 32): 61.1}


@pytest.mark.parametrize(("side", "pi"), RATIOS)
def test_the_ratio_on_square_matrices_is_the_published_one(side, pi):
    """Dryden's layout, computed for square matrices; ours differs by 4 bytes per block of a message."""
    codec = adaptive(pi=pi)
    whole = Region(0, side * side, codec.grid(columns((side, side), "F")), side * side)
    published = 12 * side + 4 + 2 * (side * side // pi)
    assert codec.nbytes_bound([whole]) == published
    assert 4 * side * side / published == pytest.approx(RATIOS[side, pi], rel=5e-3)


def test_a_message_really_has_the_ratio_of_the_table():
    scheme = Scheme.parse("adaptive(pi=64)")
    side = 1024
    made = scheme.encode(vector(scheme.codec, 1, side * side))
    columns_of_4096 = 12 * side * side // 4096
    blocks = side * side // BLOCK
    assert len(made) == 32 + columns_of_4096 + 4 * blocks + 2 * (side * side // 64)


def test_the_ratio_tends_to_twice_pi():
    codec = adaptive(pi=64)
    n = 32767 * 64
    tall = Region(0, n, codec.grid(columns((64, 32767), "C")), n)
    assert 4 * n / codec.nbytes_bound([tall]) == pytest.approx(128, rel=0.02)


# --- the sampled floor: whatever the sample says, what is kept is exact ---


def adversaries(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    stride = max(1, n // selection._SAMPLE) | 1
    base = rng.standard_normal(n).astype(np.float32)
    in_step, out_of_step = base * 1e-3, base.copy()
    in_step[::stride] *= 1e5  # the sample sees only giants
    out_of_step[::stride] = 0  # the sample sees only zeros
    hot, block = base * 1e-6, np.zeros(n, np.float32)
    hot[n // 3 : n // 3 + n // 100] += 10
    block[n // 2 : n // 2 + 9] = np.arange(-4, 5)
    return {
        "constant": np.full(n, 0.25, np.float32),
        "two values": np.where(rng.random(n) < 0.5, np.float32(1), np.float32(-1)),
        "in step with the sample": in_step,
        "out of step with the sample": out_of_step,
        "one hot region": hot,
        "almost nothing": block,
        "zeros": np.zeros(n, np.float32),
        "periodic": np.tile(base[:stride], n // stride + 1)[:n],
        "denormals": (base * 1e-39).astype(np.float32),
    }


@pytest.mark.parametrize("name", adversaries(100))
@pytest.mark.parametrize("feedback", [False, True])
@every_sign_rule
def test_an_unlucky_sample_changes_nothing(name, feedback, signs):
    n, pi = 70001, 50
    v = adversaries(n)[name]
    residual = (vector(adaptive(), 3, n) * np.float32(0)) if feedback else None
    grid, size = Grid(4096), 4096 * 3
    regions = [Region(start, min(size, n - start), grid, n) for start in range(0, n, size)]
    new_residual = np.full(n, 7, np.float32)
    parts = Parts(
        regions,
        lambda at: tuple(
            None if array is None else array[at.start : at.start + at.size]
            for array in (v, residual, new_residual if feedback else None)
        ),
        Workspace(),
    )
    chosen = alone(select_largest(parts, pi, signs == "separate"))
    got = np.concatenate([at.start + kept.index.astype(int) for at, kept in zip(regions, chosen, strict=True)])
    k = n // pi
    if signs == "joint":
        order = np.argsort(-np.abs(v), kind="stable")[:k]
        expected = np.sort(order[v[order] != 0])
    else:
        expected = separate_in_bulk(v, k)
    np.testing.assert_array_equal(got, expected)
    assert np.array_equal(new_residual, v) or not feedback


def separate_in_bulk(v, k) -> np.ndarray:
    signed = [np.flatnonzero(v > 0), np.flatnonzero(v < 0)]
    signed = [places[np.argsort(-np.abs(v[places]), kind="stable")] for places in signed]
    total = sum(map(len, signed))
    k = min(k, total)
    share = [k * len(places) // max(total, 1) for places in signed]
    while sum(share) < k:
        following = [
            (-abs(float(v[places[taken]])), places[taken], which)
            for which, (places, taken) in enumerate(zip(signed, share, strict=True))
            if taken < len(places)
        ]
        share[min(following)[2]] += 1
    return np.sort(np.concatenate([places[:taken] for places, taken in zip(signed, share, strict=True)]))


def test_the_unlucky_paths_are_really_taken(monkeypatch):
    taken = []
    exact = selection._exact_floor
    monkeypatch.setattr(selection, "_exact_floor", lambda *given: taken.append(1) or exact(*given))
    unlucky = 0
    for v in adversaries(70001).values():
        taken.clear()
        one = Region(0, v.size, Grid(4096), v.size)
        alone(select_largest(Parts([one], lambda at, v=v: (v, None, None), Workspace()), 50, False))
        unlucky += len(taken)
    assert unlucky >= 3
    assert unlucky < len(adversaries(100))


def test_buffers_borrowed_for_the_selection_come_back():
    for v in adversaries(70001).values():
        workspace = Workspace()
        one = Region(0, v.size, Grid(4096), v.size)
        alone(select_largest(Parts([one], lambda at, v=v: (v, None, None), workspace), 50, False)).release()
        assert sum(map(len, workspace._free.values())) in (2, 3, 4)


@pytest.mark.parametrize(
    "options",
    ["pi=0", "pi=-3", "pi=2.5", "pi=True", "pi='64'", "scope=row", "scope=1", "signs=both", "signs=True", "tau=3"],
)
def test_options_out_of_range_are_refused_where_they_are_written(options):
    with pytest.raises(ValueError, match="adaptive"):
        Scheme.parse(f"adaptive({options})")


def test_these_are_the_bytes_of_two_columns():
    codec = adaptive(pi=2)
    found = region(codec, (Grid(4), 0, 8, 8))
    v = np.array([0.5, 8, -1, 4, 0, -6, 0.25, 0], np.float32)  # kept: 8, -1, 4 | -6
    wire, new_residual = encode(codec, v, None, found)
    headers = [(0, 6.0, -1.0), (3, 0.0, -6.0)]
    expected = b"".join(np.uint32(at).tobytes() + np.float32([up, down]).tobytes() for at, up, down in headers)
    expected += np.uint32(4).tobytes() + np.array([1 << 1 | 1, 2 << 1, 3 << 1 | 1, 1 << 1], np.uint16).tobytes()
    assert wire.tobytes() == expected
    np.testing.assert_array_equal(new_residual, [0.5, 2, 0, -2, 0, 0, 0.25, 0])
