"""Tables in aligned columns, as text."""

from __future__ import annotations


def plain_table(columns, rows, right=()) -> str:
    """Rows of text under `columns` and a rule; those named in `right` are aligned to the right."""
    widths = widths_of(columns, rows)
    lines = []
    for row in [columns, ["-" * width for width in widths], *rows]:
        cells = zip(columns, row, widths, strict=True)
        line = [f"{cell:>{width}}" if name in right else f"{cell:{width}}" for name, cell, width in cells]
        lines.append("  ".join(line).rstrip())
    return "\n".join(lines)


def widths_of(columns, rows) -> list[int]:
    """Of each column, with its head."""
    return [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
