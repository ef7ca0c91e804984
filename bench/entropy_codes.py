"""What entropy codes save, against the entropy of the codes: `python bench/entropy_codes.py`; options by `--help`."""

import argparse
import sys

from gqallreduce.cli import entropy_codes

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
entropy_codes.add_arguments(parser)
sys.exit(entropy_codes.run(parser.parse_args()))
