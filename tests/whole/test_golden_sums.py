"""Sums and residuals that never change: their digests, for every codec's example on every schedule, are on file.

Made on purpose only by `python tests/whole/test_golden_sums.py --write`, with tests/codecs on PYTHONPATH. The messages
have files of their own (tests/codecs/golden.py); here it is what schedules, lanes, random streams and the order of
additions make of them.
"""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from golden import values

from gqallreduce.hashing import checksum
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling.topology import in_hosts
from gqallreduce.scheme import Scheme

FILE = Path(__file__).resolve().parent.parent / "golden" / "sums.txt"
TEXTS = [
    f"{schedule}/{Scheme.parse(CODECS[codec].example).codec.name}" for schedule in SCHEDULES for codec in sorted(CODECS)
]
# each codec on one schedule
FEW = [text for number, text in enumerate(TEXTS) if number % len(CODECS) % len(SCHEDULES) == number // len(CODECS)]
FORMS = [(1, (257,)), (2, (300_001,)), (3, (5, 67)), (4, (1031,)), (5, (40, 33)), (7, (33,)), (8, (2, 3, 100))]


def digest(text: str) -> str:
    """Of results and residuals after two steps, on several numbers of ranks, sums and averages."""
    found = []
    for number, (ranks, shape) in enumerate(FORMS):
        topology = in_hosts(ranks, 2) if SCHEDULES[text.partition("/")[0]].by_hosts else None
        local = LocalAllreduce(f"{text}/ef", ranks, average=number % 2 == 1, seed=number, topology=topology)
        for step in range(2):
            given = values(2 * ranks * math.prod(shape)).reshape(2, ranks, *shape)[step] / np.float32(3)
            found += [each.tobytes() for each in local(list(given), key="w")]
            found += [memory.residual("w").tobytes() for memory in local.memory]
    return f"{checksum(b''.join(found)):016x}"


def on_file() -> dict[str, str]:
    return dict(line.split() for line in FILE.read_text().splitlines())


def test_the_file_has_a_line_for_every_codec_on_every_schedule():
    assert sorted(on_file()) == sorted(TEXTS)


@pytest.mark.parametrize("text", [pytest.param(text, marks=() if text in FEW else pytest.mark.slow) for text in TEXTS])
def test_sums_and_residuals_are_what_they_were(text):
    assert digest(text) == on_file()[text], f"{text}: other bits than on file; see {__file__}"


if __name__ == "__main__" and "--write" in sys.argv:
    FILE.write_text("".join(f"{text} {digest(text)}\n" for text in sorted(TEXTS)))
