"""What learning levels takes of the calls' time: `python bench/level_updates.py`."""

import argparse
import sys

from gqallreduce.cli import level_updates

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
level_updates.add_arguments(parser)
sys.exit(level_updates.run(parser.parse_args()))
