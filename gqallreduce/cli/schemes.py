"""`schemes`: every codec and schedule with its options, what it promises, an example and its source; or one in full."""

import argparse
import importlib
import inspect

import gqallreduce as gq
from gqallreduce.cli.tables import print_table
from gqallreduce.registry import CODECS, SCHEDULES

COLUMNS = ("name", "kind", "options", "promises", "omega", "example", "source")


def add_arguments(parser):
    """The options of `schemes`."""
    parser.add_argument("--kind", choices=("codec", "schedule"), help="only codecs, or only schedules")
    parser.add_argument(
        "explained", nargs="*", metavar="NAME", type=_explained, help="prints what it is, with every option"
    )


def run(arguments):
    """Prints the table, or what the names stand for; 0."""
    if arguments.explained:
        print("\n\n".join(arguments.explained))
        return 0
    print_table(COLUMNS, [_row(entry) for entry in gq.schemes() if arguments.kind in (None, entry.kind)])
    return 0


def _explained(name):
    """What is written of a codec or a schedule."""
    schedule = name.partition("(")[0]
    if schedule in SCHEDULES:
        return f"{schedule}\n\n{importlib.import_module(f'{SCHEDULES.package}.{schedule}').__doc__.strip()}"
    try:
        return f"{name}\n\n{inspect.getdoc(CODECS.find(name, also=SCHEDULES))}"
    except ValueError as error:
        raise argparse.ArgumentTypeError(error) from None


def _row(entry):
    options = ", ".join(f"{name}={value}" for name, value in entry.options.items())
    promises = ", ".join(name for name, kept in entry.promises.items() if kept)
    omega = "-" if entry.omega is None else f"{entry.omega:.2g}"
    return entry.name, entry.kind, options or "-", promises or "-", omega, entry.example, entry.source
