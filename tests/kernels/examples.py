"""How many examples Hypothesis tries: a number of the test's own, and with `--few` a tenth of it."""

from hypothesis import settings


def examples(most: int) -> settings:
    """Decorates a test that tries `most` examples where the usual number is 100, else in proportion."""
    return settings(max_examples=max(1, most * settings().max_examples // 100))
