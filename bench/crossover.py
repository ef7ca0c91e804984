"""At which rate of the links each scheme ceases to win: `python bench/crossover.py`; options by `--help`.

It needs what bench/netbed needs, and a quiet machine for about five minutes.
"""

import argparse
import sys
from pathlib import Path

from gqallreduce.cli import crossover

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
crossover.add_arguments(parser)
sys.exit(crossover.run(parser.parse_args(), bed=Path(__file__).with_name("netbed")))
