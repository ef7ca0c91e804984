"""Is a scheme slower than it was in an earlier commit? `python bench/before_after.py COMMIT`; options by `--help`.

Both commits are built and measured in turn. Needs a quiet machine for about ten minutes, and for beds of hosts what
bench/netbed needs.
"""

import argparse
import sys

from gqallreduce.cli import before_after

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
before_after.add_arguments(parser)
sys.exit(before_after.run(parser.parse_args()))
