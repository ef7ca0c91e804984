"""What joining the short columns of small matrices saves and loses: `python bench/short_columns.py --gradients DIR`."""

import argparse
import sys

from gqallreduce.cli import short_columns

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
short_columns.add_arguments(parser)
sys.exit(short_columns.run(parser.parse_args()))
