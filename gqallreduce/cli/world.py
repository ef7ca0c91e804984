"""A command on all ranks of a job."""

import contextlib
import os
import sys

import gqallreduce as gq
from gqallreduce.cli import dense, machine
from gqallreduce.cli.needs import lacking


def on_world(name, run_on, arguments):
    """run_on(COMM_WORLD, arguments) as the command `name`: its exit status, or 1 after an error, on all ranks."""
    dense.allow_ring()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    wrong = machine.wrong_launcher(comm.size)
    if wrong:
        print(f"{name}: {wrong}", file=sys.stderr)
        return 1
    if lack := lacking():
        if comm.rank == 0:
            print(f"{name}: {lack}", file=sys.stderr)
        return 2
    try:
        return run_on(comm, arguments)
    except Exception as problem:
        return abort(comm, problem)


def are_schemes(name, comm, texts):
    """Are all of these schemes? Else rank 0 says, for the command `name`, what is wrong with the first that is none."""
    try:
        for text in texts:
            gq.Scheme.parse(text)
    except ValueError as problem:
        if comm.rank == 0:
            print(f"{name}: {problem}", file=sys.stderr)
        return False
    return True


@contextlib.contextmanager
def environment(values):
    """Variables of the environment, of these names, while objects are made that read them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def abort(comm, problem):
    """Says what went wrong on this rank and ends the whole job with status 1: the other ranks may wait for this one."""
    import traceback

    traceback.print_exception(problem)
    sys.stderr.flush()
    sys.stdout.flush()
    if comm.size > 1:
        comm.Abort(1)
    return 1
