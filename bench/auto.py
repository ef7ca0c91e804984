"""What `auto/` costs beside the best choice, by size: `mpirun -n 4 python bench/auto.py`; options by `--help`."""

import argparse
import sys

from gqallreduce.cli import auto, dense

dense.allow_ring()
parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
auto.add_arguments(parser)
sys.exit(auto.run(parser.parse_args()))
