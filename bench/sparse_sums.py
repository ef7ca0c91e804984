"""The bytes of sparse sums beside those of the published methods: `python bench/sparse_sums.py`. No MPI."""

import argparse
import sys

from gqallreduce.cli import sparse_sums

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
sparse_sums.add_arguments(parser)
sys.exit(sparse_sums.run(parser.parse_args()))
