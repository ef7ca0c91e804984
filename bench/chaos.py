"""A training under faults of a cluster: `python bench/chaos.py`, which starts mpirun itself; options by `--help`."""

import argparse
import sys

from gqallreduce.cli import chaos

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
chaos.add_arguments(parser)
sys.exit(chaos.run(parser.parse_args()))
