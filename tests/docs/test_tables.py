"""The tables of the pages say what the registry, the model and the code say."""

import re
from pathlib import Path

import numpy as np
import pytest

import gqallreduce as gq
from gqallreduce.coding import lanes, layout
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.scheduling.simulate import table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAMES = [pytest.param(entry.kind, entry.name, id=entry.name) for entry in gq.schemes()]
every_scheme = pytest.mark.parametrize(("kind", "name"), NAMES)
every_codec = pytest.mark.parametrize("name", sorted(CODECS))


def rows(page, first_column):
    """name -> cells of the table whose first column has this heading; of several, of all."""
    found = {}
    for body in re.findall(rf"^\| {first_column}[^|]*\|.*\n\|[-|: ]+\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE):
        for line in body.splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for name in re.findall(r"^`(\w+)`", cells[0]):
                found.setdefault(name, []).append(cells)
    return found


def test_the_table_of_schedules_is_what_simulate_prints():
    assert table(16) in (DOCS / "schedules.md").read_text()


@every_scheme
def test_everything_registered_has_its_rows(kind, name):
    page = DOCS / f"{kind}s.md"
    assert len(rows(page, kind)[name]) >= 2, f"{page.name}: what it is, and what it costs or does"
    assert name in rows(ROOT / "README.md", kind)


@every_scheme
def test_everything_registered_has_its_file(kind, name):
    assert (ROOT / "gqallreduce" / f"{kind}s" / f"{name}.py").exists()


@every_codec
def test_every_codec_has_a_test_file_of_its_name(name):
    assert (ROOT / "tests" / "codecs" / f"test_{name}.py").exists()


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_schedule_is_named_where_schedules_are_tested(name):
    """What holds for all of them is tested over the registry; what a schedule should cost, by its name."""
    assert any(f'"{name}"' in path.read_text() for path in (ROOT / "tests" / "schedules").glob("test_*.py"))


@pytest.mark.parametrize("kind", ["codec", "schedule"])
def test_no_row_is_left_of_what_is_gone(kind):
    known = set(CODECS if kind == "codec" else SCHEDULES)
    for page in (DOCS / f"{kind}s.md", ROOT / "README.md"):
        assert set(rows(page, kind)) <= known


@every_codec
def test_options_and_promises_are_those_of_the_codec(name):
    entry = next(entry for entry in gq.schemes() if (entry.kind, entry.name) == ("codec", name))
    options = ", ".join(f"{option}={value}" for option, value in entry.options.items())
    for page, column in ((DOCS / "codecs.md", 1), (ROOT / "README.md", 1)):
        assert rows(page, "codec")[name][0][column].strip("`") == options
    cells = rows(DOCS / "codecs.md", "codec")[name][0]
    assert cells[3].split(", ") == [promise for promise, kept in entry.promises.items() if kept]
    assert cells[4] == entry.source


@every_codec
def test_bits_per_value_are_measured(name):
    count = 1 << 20
    values = np.random.default_rng(0).standard_normal((1 << 10, 1 << 10), np.float32)
    bits = 8 * (len(gq.Scheme.parse(name).encode(values)) - 32) / count
    assert float(rows(DOCS / "codecs.md", "codec")[name][0][2]) == pytest.approx(bits, abs=5.1e-5)
    assert float(rows(ROOT / "README.md", "codec")[name][0][2]) == pytest.approx(bits, abs=5.1e-4)


@every_scheme
def test_sources_are_said_where_the_code_is(kind, name):
    if kind == "codec":
        doc = CODECS[name].__doc__
        assert re.search(r"^\s*Source: \S", doc, re.MULTILINE)
        assert "differs: " in doc
        assert re.search(r"^\s*(Error|Variance): \S", doc, re.MULTILINE)
        while another := re.search(r"Options: those of `(\w+)`", doc):
            doc = doc.replace(another.group(0), "") + CODECS[another.group(1)].__doc__
        assert [option for option in CODECS[name].options() if not re.search(rf"^ *{option}$", doc, re.MULTILINE)] == []
    else:
        module = (ROOT / "gqallreduce" / "schedules" / f"{name}.py").read_text()
        assert SCHEDULES[name].source
        assert "differs: " in SCHEDULES[name].source
        assert re.search(r"^Cost: \S.*Encodings per contribution: ", module, re.MULTILINE)


def test_the_constants_of_the_format_are_those_of_the_code():
    found = re.findall(r"^\| [^|]+ \| (\d+) \| `([A-Z_]+)` \|$", (DOCS / "wire.md").read_text(), re.MULTILINE)
    constants = {name: int(value) for value, name in found}
    assert constants == {
        name: value for part in (layout, lanes) for name, value in vars(part).items() if name.isupper()
    }


def test_the_header_of_the_frame_is_that_of_the_code():
    """Offsets and sizes of the page's table, field by field, against the docstring of frame.py."""
    page = re.findall(r"^\| (\d+) \| (\d+) \| ", (DOCS / "wire.md").read_text(), re.MULTILINE)
    code = re.findall(r"^(\d+)  +(\d+)  ", (ROOT / "gqallreduce" / "coding" / "frame.py").read_text(), re.MULTILINE)
    assert page == code


def test_the_command_line_is_explained():
    for name in ("info", "schemes", "plan"):
        assert f"python -m gqallreduce {name}" in (ROOT / "README.md").read_text()


def test_the_table_of_omega_is_what_the_codecs_say():
    page = (DOCS / "codecs.md").read_text()
    heading, _, *lines = re.search(r"^\| omega \|.*\n(?:\|.*\n)+", page, re.MULTILINE)[0].splitlines()
    buckets = re.findall(r"\d+", heading)
    assert len(lines) >= 7
    for line in lines:
        text, *printed = [cell.strip() for cell in line.split("|")[1:-1]]
        for bucket, number in zip(buckets, printed, strict=True):
            codec = gq.Scheme.parse(re.match(r"`(.*)\)`", text)[1] + f", bucket={bucket})").codec
            assert float(number) == pytest.approx(codec.omega, rel=0.05)
