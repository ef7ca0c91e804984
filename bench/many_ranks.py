"""What messages cost with many ranks: `mpirun -n 64 python bench/many_ranks.py`, or all ranks in one process by
`python bench/many_ranks.py --in-process 64 256 1024`; options by `--help`."""

import argparse
import sys

from gqallreduce.cli import many_ranks

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
many_ranks.add_arguments(parser)
sys.exit(many_ranks.run(parser.parse_args()))
