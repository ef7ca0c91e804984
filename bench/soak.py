"""Random calls for an hour, compared with the oracle: `mpirun -n 3 python bench/soak.py`; options by `--help`."""

import argparse
import sys

from gqallreduce.cli import soak

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
soak.add_arguments(parser)
sys.exit(soak.run(parser.parse_args()))
