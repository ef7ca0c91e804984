"""Tables: on the terminal, by rich where it is installed; those of results, by rich; those of pages, as Markdown."""

import importlib.util
import sys

from gqallreduce.plain_table import plain_table, widths_of


def print_table(columns, rows, right=()):
    """Print rows of text under `columns`; those named in `right` are aligned to the right.

    On a terminal rich folds what is too wide; into a pipe or a file every row is one line.
    """
    if importlib.util.find_spec("rich") is None:
        print_plain(columns, rows, right)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    wide = sum(widths_of(columns, rows)) + 4 * len(columns)
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else wide).print(table)


def print_plain(columns, rows, right=()):
    """The same without rich."""
    print(plain_table(columns, rows, right))


def markdown(columns, rows, right=()):
    """The same as text for a page."""
    rule = ["---:" if name in right else "---" for name in columns]
    return "".join(f"| {' | '.join(line)} |\n" for line in [columns, rule, *rows])


def results(title, columns, lines, left=()):
    """A rich table for a Report: columns are aligned to the right, but for those named in `left`."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="", header_style="", box=box.SIMPLE_HEAD)
    for name in columns:
        made.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for line in lines:
        made.add_row(*line)
    return made
