"""Trains a PyTorch model by several schemes and optimizers: `mpirun -n 2 python bench/train_torch.py`, or under srun.

The same start and the same mini-batches for each; loss, bytes and times of a step. Options by `--help`;
docs/training.md explains what is measured.
"""

import argparse
import os
import sys

# Before anything is loaded: there is one rank per core or less, so a rank's matrix products get one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from gqallreduce.cli.torch_training import command

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args()))
