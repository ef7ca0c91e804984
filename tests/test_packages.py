"""The packages lie in layers: each imports from those before it, never the reverse."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "gqallreduce"
LAYERS = "coding", "backends", "scheduling", "transport", "runtime"
# What registers itself: below the layer that uses the registry.
BELOW = {"codecs": ("coding",), "schedules": ("scheduling",)}
# At the top of the folder, and without anything of ours but each other: for all layers.
COMMON = {"errors", "hashing", "plain_table", "quantities", "registry", "rounding", "stats", "threads", "_kernels"}


def imported(path):
    """The dotted names under gqallreduce that a module imports, as tuples."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gqallreduce":
            first = node.module.split(".")[1:]
            yield from [first] if first else [[alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1:] for alias in node.names if alias.name.startswith("gqallreduce."))


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("layer", [*LAYERS, *BELOW])
def test_a_layer_imports_from_those_before_it(layer):
    before = BELOW[layer] if layer in BELOW else LAYERS[: LAYERS.index(layer)]
    scheme = {"scheme"} if layer == "runtime" else set()  # made of codecs and schedules, so above both
    found = {(path.name, name[0]) for path in modules(layer) for name in imported(path)}
    assert found
    assert {pair for pair in found if pair[1] not in {layer, *before} | COMMON | scheme} == set()


def test_sums_of_whole_models_are_above_all_layers():
    """And below the command line."""
    found = {(path.name, name[0]) for path in modules("models") for name in imported(path)}
    assert found
    assert not {pair for pair in found if pair[1] == "cli"}
    below = [path for layer in [*LAYERS, *BELOW] for path in modules(layer)]
    assert "models" not in {name[0] for path in below for name in imported(path)}


def test_what_is_common_imports_no_layer():
    names = {name[0] for module in COMMON - {"_kernels"} for name in imported(ROOT / f"{module}.py")}
    assert names <= COMMON
