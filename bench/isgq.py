"""The experiments of ISGQ: `mpirun -n 4 python bench/isgq.py`, or under srun.

What methods lose of gradients that are products, trainings against bytes, and the time of calls. Options by `--help`;
docs/training.md explains what is measured.
"""

import argparse
import os
import sys

# Before NumPy is loaded: there is one rank per core or less, so a rank computes with one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ["OMP_NUM_THREADS"])

from gqallreduce.cli import isgq

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
isgq.add_arguments(parser)
sys.exit(isgq.run(parser.parse_args()))
