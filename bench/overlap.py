"""What of a call hides behind its caller's computation: `mpirun -n 2 python bench/overlap.py`; options by `--help`."""

import argparse
import sys

from gqallreduce.cli import overlap

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
overlap.add_arguments(parser)
sys.exit(overlap.run(parser.parse_args()))
