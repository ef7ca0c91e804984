"""A data-parallel training of a small network: `mpirun -n 4 python bench/train_mlp.py`, or under srun.

Trains the same network from the same start by several schemes of summing gradients, and compares accuracy, loss, bytes
and time. Options by `--help`; docs/training.md explains what is measured.
"""

import argparse
import os
import sys

# Before NumPy is loaded: there is one rank per core or less, so a rank's matrix products get one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))

from gqallreduce.cli.training import command

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args()))
