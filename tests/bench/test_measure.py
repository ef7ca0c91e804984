"""How schemes share memory and rounds; without MPI."""

import ast
import inspect

import pytest

from gqallreduce.cli import bench, dense_on_gpu, exact, measure, places, twins
from gqallreduce.cli.control import choices

SCHEMES = ["raw", "direct/onebit/ef", "direct/adaptive(pi=64)/ef", "direct/qsgd(bits=4)", "auto/adaptive/ef"]


def test_all_schemes_are_interleaved_where_memory_allows():
    assert measure.groups(SCHEMES, budget=100) == [SCHEMES]


@pytest.mark.parametrize("budget", [0.5, 5, 6.3, 8, 11])
def test_groups_keep_every_scheme_once_and_within_the_budget(budget):
    found = measure.groups(SCHEMES, budget)
    assert [text for group in found for text in group] == SCHEMES
    for group in found:
        assert len(group) == 1 or 2 + sum(map(measure.buffer_count, group)) <= budget


def test_five_buffers_are_enough_for_one_scheme_with_feedback():
    assert 2 + measure.buffer_count("onebit/ef") <= 5


def test_dense_rows_of_several_groups_become_one(sum_rows):
    rows = [row for row in sum_rows if row["side"] == 64]
    again = [{**row, "seconds": [3 * value for value in row["seconds"]]} for row in rows[:2]]
    found = measure.pooled([*rows[:3], *again, rows[3]])
    assert [row["scheme"] for row in found] == [row["scheme"] for row in rows]
    assert len(found[0]["seconds"]) == 6
    assert found[0]["speedup"] == 1.0
    assert found[1]["speedup"] == pytest.approx(
        measure.median(found[0]["seconds"]) / measure.median(found[1]["seconds"])
    )


def test_the_choices_of_an_mpi_variable_are_read_from_its_description():
    description = """Variable to select allreduce algorithm
auto - Internal algorithm selection (can be overridden with A_FILE)
nb                       - Force nonblocking algorithm
recursive_doubling       - Force recursive doubling algorithm
ring                     - Force ring algorithm"""
    assert choices(description) == ["auto", "nb", "recursive_doubling", "ring"]


@pytest.mark.parametrize("module", [bench, dense_on_gpu, exact, measure, places, twins])
def test_nothing_between_timed_calls_wakes_the_threads_of_blas(module):
    """They would spin into the next contender's time."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        assert not isinstance(node, ast.MatMult)
        assert getattr(node, "attr", None) not in {"dot", "vdot", "inner", "matmul", "tensordot", "einsum", "linalg"}
