"""Throughput of every codec on one machine, without MPI: `python bench/codecs.py`; options by `--help`."""

import argparse
import sys

from gqallreduce.cli import codecs

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
codecs.add_arguments(parser)
sys.exit(codecs.run(parser.parse_args()))
