"""Logistic regression with sparse steps, as in the Mem-SGD paper: `mpirun -n 2 python bench/mem_sgd.py`, or under srun.

Compares top-k and rand-k with and without memory, QSGD and plain SGD: loss against iterations and against bits.
Options by `--help`; docs/training.md explains what is measured.
"""

import argparse
import os
import sys

# Before NumPy is loaded: there is one rank per core or less, so a rank's matrix products get one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))

from mpi4py import MPI

from gqallreduce.cli import mem_sgd

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
mem_sgd.add_arguments(parser)
sys.exit(mem_sgd.run(parser.parse_args(), MPI.COMM_WORLD))
