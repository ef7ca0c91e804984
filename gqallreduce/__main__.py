"""`python -m gqallreduce`: each command is a module of `cli`, with `add_arguments(parser)` and `run(arguments)`."""

import argparse
import importlib
import os
import sys

COMMANDS = {
    "info": "versions, MPI, CUDA-awareness, SIMD level, threads, profile",
    "schemes": "the table of codecs and schedules",
    "plan": "predicted time of every scheme and of dense; needs no MPI",
    "calibrate": "measure this machine, for `auto/` and `plan`; under mpirun or srun",
    "timeline": "draw the traces of ranks",
    "bench": "measure schemes against MPI_Allreduce; under mpirun or srun",
    "report": "one page of tables and plots, from result files of the benchmarks",
}
MODULES = {"report": "page"}


def main(words=None):
    """Runs one command; returns its exit status."""
    words = sys.argv[1:] if words is None else words
    about = "Quantized allreduce over MPI."
    parser = argparse.ArgumentParser(prog="python -m gqallreduce", description=about, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS))
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        # Only the module of the command that runs is imported: plan needs no MPI, info works without NumPy's friends.
        if name in words[:1]:
            module = importlib.import_module(f"gqallreduce.cli.{MODULES.get(name, name)}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    arguments = parser.parse_args(words)
    try:
        status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the program that reads the output, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        return 1


if __name__ == "__main__":
    sys.exit(main())
