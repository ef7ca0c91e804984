"""What schemes bring on this machine, in two minutes: `make bench`.

Sums of matrices over shared memory, and where Linux can make it an emulated network of 4 hosts with links of 1 Gbit/s
(bench/netbed); then three lines in plain words. Options of bench/allreduce_synthetic.py are passed on.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from gqallreduce.cli import machine, verdict
from gqallreduce.cli.report import read

BENCH = Path(__file__).resolve().parent
IMPOSSIBLE = 77  # netbed's exit status where it cannot make hosts
HOSTS, RATE = 4, "1gbit"
USUAL = ["--max", "2048", "--seconds", "8"]  # from 16 KiB to 16 MiB


def main():
    """Runs both, and says what they have shown; the exit status."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, formatter_class=form)
    parser.add_argument("--ranks", type=int, default=4, help="over shared memory (4)")
    files = "writes NAME_shared_memory and NAME_1gbit, each .jsonl, .png and .svg (bench/results/first_look)"
    parser.add_argument("--output", default=str(BENCH / "results" / "first_look"), metavar="NAME", help=files)
    known, rest = parser.parse_known_args()
    program, found = [sys.executable, str(BENCH / "allreduce_synthetic.py"), *USUAL, *rest], []
    mpirun = [machine.launcher(), "-n", str(known.ranks), "--bind-to", "none"]
    bed = [str(BENCH / "netbed"), "--hosts", str(HOSTS), "--rate", RATE, "--quiet", "--"]
    for name, words in {"shared_memory": mpirun, "1gbit": bed}.items():
        output = f"{known.output}_{name}"
        code = subprocess.run([*words, *program, "--output", output]).returncode
        if code == IMPOSSIBLE:
            print(_without_network())
        elif code:
            return code
        else:
            found.append(read(f"{output}.jsonl", "sum"))
    print("\n".join(["", *verdict.lines(found)]))
    return 0


def _without_network():
    return (
        f"No emulated network here (the reason is above): it would show how much faster {HOSTS} hosts with links of "
        "1 Gbit/s sum. Elsewhere 16 MiB took a seventh of the time with four bits a value, and a twentieth with one "
        "value in 64 (README.md, Measured)."
    )


if __name__ == "__main__":
    sys.exit(main())
