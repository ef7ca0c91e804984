"""Settings of every test session, with make or without.

With `--pairs`, which `make FULL=pairs test` passes, a test is run with every two values of each two of its parameters,
but not with all combinations of three and more. With `--each`, which `make FULL=1 test` passes, with every value of
each parameter. With `--few`, which `make test` passes, so too, but tests and values that are marked `slow` are left
out, and Hypothesis tries a tenth of its examples. Hypothesis draws the same examples wherever chance would make runs
differ, and a test that starts an mpirun of its own may do so as root and with more ranks than cores.
"""

import functools
import gc
import itertools
import os

import pytest
from hypothesis import HealthCheck, settings

# As in the Makefile, which needs them before any Python runs.
LAUNCH = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

# The machines of CI are shared and slow at times: a deadline would measure them, not the code.
settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile(
    "repeatable",
    parent=settings.get_profile("local"),
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# 100 are usual; a test that asks for another number gets as large a part of it (tests/kernels/examples.py).
FEW_EXAMPLES = 10


def pytest_addoption(parser):
    add = functools.partial(parser.addoption, action="store_const", dest="part")
    add("--few", const="few", help="as --each, without what is slow, and a tenth of Hypothesis' examples")
    add("--each", const="each", help="each value of each parameter at least once, not all products")
    add("--pairs", const="pairs", help="each two values of two parameters at least once, not all products")
    parser.addoption("--examples", type=int, help="so many of Hypothesis' examples, where 100 are usual (--few: 10)")


@pytest.hookimpl(trylast=True)  # of what -k and -m have left
def pytest_collection_modifyitems(config, items):
    part = config.getoption("part")
    if part is None:
        return
    together = 2 if part == "pairs" else 1
    kept, wanted = set(), [item for item in items if part != "few" or item.get_closest_marker("slow") is None]
    for _, group in itertools.groupby(wanted, key=lambda item: item.nodeid.partition("[")[0]):
        kept.update(some(list(group), together))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def some(items, together):
    """Some items of one test, in which so many values of as many parameters occur together in all combinations: those
    with the most new ones first. At least one."""
    found = [list(values_of(item)) for item in items]
    values = [set(itertools.combinations(each, min(together, len(each)))) for each in found]
    missing, kept = set().union(*values), []
    for wanted in range(max(map(len, values)), 0, -1):
        for item, mine in zip(items, values, strict=True):
            if len(mine & missing) >= wanted:
                kept.append(item)
                missing -= mine
    return kept


def values_of(item):
    """(names, which values) of every `parametrize` of a test, and of every fixture that has parameters."""
    given = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    yield "name", item.nodeid.partition("[")[0]
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].replace(" ", "").split(",") if isinstance(mark.args[0], str) else mark.args[0]
        yield tuple(names), tuple(id(given.pop(name)) for name in names)
    yield from ((name, id(value)) for name, value in given.items())


def pytest_configure(config):
    for name, value in LAUNCH.items():
        os.environ.setdefault(name, value)
    # Ranks must draw alike, and a failure in CI must fail again at home.
    repeatable = "CI" in os.environ or config.getoption("--with-mpi")
    profile = settings.get_profile("repeatable" if repeatable else "local")
    examples = config.getoption("examples") or (FEW_EXAMPLES if config.getoption("part") == "few" else None)
    if examples:
        profile = settings(profile, max_examples=examples)
    settings.register_profile("chosen", profile)
    settings.load_profile("chosen")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Tests call gc.collect(): what was collected of tests stays to the end, and need not be looked at each time."""
    gc.collect()
    gc.freeze()
