"""What a call takes, from 4 bytes on: `mpirun -n 2 python bench/latency.py`, or under srun; options by `--help`."""

import argparse
import sys

from gqallreduce.cli import latency

parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
latency.add_arguments(parser)
sys.exit(latency.run(parser.parse_args()))
