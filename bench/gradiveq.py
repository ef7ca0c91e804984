"""The experiments of GradiVeQ: `mpirun -n 4 python bench/gradiveq.py`, or under srun.

Trains a small convolutional network, which needs torch, and measures what learned bases lose and what calls take.
Options by `--help`; docs/training.md explains what is measured.
"""

import argparse
import os
import sys

# Before NumPy and torch are loaded: there is one rank per core or less, so a rank computes with one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ["OMP_NUM_THREADS"])

from mpi4py import MPI

from gqallreduce.cli import gradiveq

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
gradiveq.add_arguments(parser)
sys.exit(gradiveq.run(parser.parse_args(), MPI.COMM_WORLD))
