"""The synthetic allreduce benchmark: `mpirun -n 4 python bench/allreduce_synthetic.py`, or under srun.

The same as `python -m gqallreduce bench`, whose `--help` lists the options.
"""

import sys

from gqallreduce.__main__ import main

sys.exit(main(["bench", *sys.argv[1:]]))
