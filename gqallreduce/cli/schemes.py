"""`schemes`: every codec and schedule with its options, what it promises, an example and its source."""

import gqallreduce as gq
from gqallreduce.cli.tables import print_table

COLUMNS = ("name", "kind", "options", "promises", "omega", "example", "source")


def add_arguments(parser):
    """The options of `schemes`."""
    parser.add_argument("--kind", choices=("codec", "schedule"), help="only codecs, or only schedules")


def run(arguments):
    """Prints the table; 0."""
    print_table(COLUMNS, [_row(entry) for entry in gq.schemes() if arguments.kind in (None, entry.kind)])
    return 0


def _row(entry):
    options = ", ".join(f"{name}={value}" for name, value in entry.options.items())
    promises = ", ".join(name for name, kept in entry.promises.items() if kept)
    omega = "-" if entry.omega is None else f"{entry.omega:.2g}"
    return entry.name, entry.kind, options or "-", promises or "-", omega, entry.example, entry.source
