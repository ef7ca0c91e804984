"""What every codec loses of one encoding against the bits it takes: `python bench/quantization_error.py`."""

import argparse
import sys

from gqallreduce.cli import quantization_error

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
quantization_error.add_arguments(parser)
sys.exit(quantization_error.run(parser.parse_args()))
