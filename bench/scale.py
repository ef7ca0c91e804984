"""What the cost model says of 2 to 4096 ranks, and what memory messages take there: `python bench/scale.py`; options
by `--help`."""

import argparse
import sys

from gqallreduce.cli import scale

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
scale.add_arguments(parser)
sys.exit(scale.run(parser.parse_args()))
