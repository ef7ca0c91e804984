"""What is tested over and over: each codec's example, the variants its own test file declares, all schedules.

A codec's test file, tests/codecs/test_<name>.py, says in `VARIANTS` which options are worth a run of the whole
contract; in `WHOLE`, if all of them would be many, which of these are worth whole allreduces, or the name of a codec
whose whole allreduces stand for its own, from which it differs in data alone; and, if the codec is unbiased, in
`variance(codec, v)` and `spread(codec, v)` how its outcomes scatter.
"""

import importlib.util
import itertools
import re
from pathlib import Path

import pytest

from gqallreduce.coding.dtypes import FLOATS
from gqallreduce.coding.layout import Form
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.scheme import Scheme

HERE = Path(__file__).parent
RANKS = (1, 2, 3, 4, 5, 7, 8)


def particulars_file(name: str) -> Path:
    return HERE / f"test_{name}.py"


def particulars(name: str):
    """The test file of a codec, as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"particulars_{name}", particulars_file(name))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PARTICULARS = {name: particulars(name) for name in sorted(CODECS) if particulars_file(name).exists()}


def _texts(name: str, *variants: str) -> list[str]:
    """Codec texts without schedule and feedback: the example's, then the first of these lists of variants there is."""
    example = str(Scheme.parse(CODECS[name].example).codec.name)
    written = [part for part in CODECS[name].example.split("/") if part.startswith(example)]
    found = [getattr(PARTICULARS.get(name), each, None) for each in variants]
    chosen = next((each for each in found if each is not None), [])
    return [] if isinstance(chosen, str) else list(dict.fromkeys(written + chosen))


TEXTS = [text for name in sorted(CODECS) for text in _texts(name, "VARIANTS")]
WHOLE = [text for name in sorted(CODECS) for text in _texts(name, "WHOLE", "VARIANTS")]
SCHEDULE_NAMES = sorted(SCHEDULES)


def _bound() -> dict:
    """id -> codec, as it works on each dtype, or with error feedback, where that differs; not those that leave it to
    another codec."""
    found = {}
    for text in TEXTS:
        codec = Scheme.parse(text).codec
        for dtype in FLOATS:
            bound = codec.bind(Form((1000,), "C", dtype))
            if not codec.indirect and bound not in found.values():
                found[text if dtype == "float32" else f"{text} on {dtype}"] = bound
        if codec.with_feedback() is not codec and not codec.indirect:
            found[f"{text}/ef"] = codec.with_feedback().bind(Form((1000,), "C", "float32"))
    return found


CODEC = _bound()


def codec_name(text: str) -> str:
    """What a codec's text begins with."""
    return re.match(r"\w+", text)[0]


def variants(name: str, values):
    """Parametrizes a test by these texts of codecs, or by what they stand for in a dict.

    With `--few` a test runs with one variant of each codec, and the next test so decorated with the next ones.
    """
    values = values if isinstance(values, dict) else dict.fromkeys(values)
    of_codec, turns = {}, itertools.count()
    for text in values:
        of_codec.setdefault(codec_name(text), []).append(text)

    def mark(test):
        turn = next(turns)
        taken = {texts[turn % len(texts)] for texts in of_codec.values()}
        found = []
        for text, value in values.items():
            given = (text, None) if value is None else (value, text)
            found.append(pytest.param(given[0], id=given[1], marks=() if text in taken else pytest.mark.slow))
        return pytest.mark.parametrize(name, found)(test)

    return mark


def sizes(ranks: int, large: int = 1031) -> list[int]:
    """Sizes where cutting goes wrong first."""
    return sorted({0, 1, ranks - 1, ranks, ranks + 1, 257, large})
