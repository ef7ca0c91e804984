"""Settings of every test session, with make or without.

Hypothesis draws the same examples wherever chance would make runs differ, and a test that starts an mpirun of its own
may do so as root and with more ranks than cores.
"""

import os

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


def pytest_configure(config):
    for name, value in LAUNCH.items():
        os.environ.setdefault(name, value)
    # Ranks must draw alike, and a failure in CI must fail again at home.
    repeatable = "CI" in os.environ or config.getoption("--with-mpi")
    settings.load_profile("repeatable" if repeatable else "local")
