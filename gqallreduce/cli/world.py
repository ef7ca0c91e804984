"""A command on all ranks of a job."""

import sys

from gqallreduce.cli import dense, machine


def on_world(name, run_on, arguments):
    """run_on(COMM_WORLD, arguments) as the command `name`: its exit status, or 1 after an error, on all ranks."""
    dense.allow_ring()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    wrong = machine.wrong_launcher(comm.size)
    if wrong:
        print(f"{name}: {wrong}", file=sys.stderr)
        return 1
    try:
        return run_on(comm, arguments)
    except Exception as problem:
        return abort(comm, problem)


def abort(comm, problem):
    """Says what went wrong on this rank and ends the whole job with status 1: the other ranks may wait for this one."""
    import traceback

    traceback.print_exception(problem)
    sys.stderr.flush()
    sys.stdout.flush()
    if comm.size > 1:
        comm.Abort(1)
    return 1
