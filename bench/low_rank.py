"""What calls of powersgd take, beside their products and sums: `mpirun -n 2 python bench/low_rank.py`."""

import argparse
import sys

from gqallreduce.cli import low_rank

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
low_rank.add_arguments(parser)
sys.exit(low_rank.run(parser.parse_args()))
