"""Settings of every test session: Hypothesis draws the same examples wherever chance would make runs differ."""

import os

from hypothesis import HealthCheck, settings

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
    # Ranks must draw alike, and a failure in CI must fail again at home.
    repeatable = "CI" in os.environ or config.getoption("--with-mpi")
    settings.load_profile("repeatable" if repeatable else "local")
