"""Where schemes cease to win: the arithmetic on made-up rows, and the whole command with a bed that replays results."""

import argparse
import io
import json
import math
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from rich.console import Console

from gqallreduce.cli import crossover, report
from gqallreduce.quantities import link_rate, link_rate_text

RECORDED = Path(__file__).parents[2] / "bench" / "results" / "netbed_4x1gbit_64MiB.jsonl"


def options(*words):
    parser = argparse.ArgumentParser()
    crossover.add_arguments(parser)
    return parser.parse_args(words)


def row(rate, scheme, speedup, seconds=1.0):
    bound = crossover.link_bound(rate, hosts=4, cores=2)
    more = {"dense": scheme.startswith("MPI"), "seconds": [seconds], "speedup": speedup}
    return {"rate": rate, "hosts": 4, "link_bound": bound, "bytes": 1 << 24, "scheme": scheme, **more}


@pytest.mark.parametrize(
    ("points", "rate"),
    [
        ([(1e8, 4.0), (1e10, 0.25)], 1e9),  # half-way, in logarithms
        ([(1e8, 8.0), (1e9, 2.0), (1e10, 0.5)], math.sqrt(1e19)),
        ([(1e8, 8.0), (1e9, 1.0), (1e10, 0.5)], 1e9),
        ([(1e8, 2.0), (1e9, 0.5), (1e10, 2.0)], math.sqrt(1e17)),  # what it wins again does not count
        ([(1e8, 8.0), (1e9, 1.0)], math.inf),
        ([(1e8, 0.9), (1e9, 2.0)], 0.0),
        ([], 0.0),
    ],
)
def test_a_scheme_wins_up_to_where_its_speed_up_falls_to_one(points, rate):
    assert crossover.crossover(points) == pytest.approx(rate)


def test_where_the_processors_decide_it_is_marked():
    falling, lasting, losing = [(1e8, 4.0), (1e10, 0.25)], [(1e8, 4.0), (1e10, 2.0)], [(1e8, 0.5)]
    assert crossover.wins_text(falling, bound=2e9) == "up to 1 Gbit/s"
    assert crossover.wins_text(falling, bound=5e8) == "up to 1 Gbit/s*"
    assert crossover.wins_text(lasting, bound=2e9) == "at all up to 10 Gbit/s*"
    assert crossover.wins_text(losing, bound=2e9) == "at no rate measured"


@pytest.mark.parametrize(("rate", "bound"), [(1e8, True), (2e9, True), (2.5e9, False), (None, False)])
def test_four_hosts_on_two_cores_are_bound_by_links_of_up_to_two_gigabits(rate, bound):
    assert crossover.link_bound(rate, hosts=4, cores=2) is bound


def test_a_dense_sum_at_the_speed_of_the_link_uses_all_of_it():
    ideal = 1.5 * 8 * (1 << 24) / 1e9
    rows = [row(1e9, "MPI_Allreduce", 0.5, 2 * ideal), row(1e9, "MPI_Allreduce (ring)", 1.0, ideal)]
    assert crossover.link_used(rows) == pytest.approx(1)
    assert crossover.link_used([row(None, "MPI_Allreduce", 1.0)]) is None


def test_the_table_has_every_rate_and_scheme_and_marks_what_the_processors_bound():
    rates = (1e8, 1e9, 1e10, None)
    rows = [row(rate, name, 1.0) for rate in rates for name in ("MPI_Allreduce", "ring/qsgd")]
    rows += [row(1e9, "late", 3.25)]
    rows.sort(key=lambda row: row["rate"] or math.inf)
    console = Console(width=80, file=io.StringIO(), color_system=None)
    report.print_whole(console, crossover.crossover_table(rows))
    head, lines = console.file.getvalue().split("─", 1)
    for text in ("16 MiB", "100 Mbit/s ", "1 Gbit/s ", "10 Gbit/s*", "unlimited*", "wins"):
        assert text in head
    (late,) = (line.split() for line in lines.splitlines() if "late" in line)
    assert late[:5] == ["late", "-", "3.25x", "-", "-"]
    assert "…" not in lines


@pytest.mark.parametrize("text", ["", "1", "0gbit", "-1gbit", "1GB/s"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        link_rate(text)


def test_the_default_rates_are_said_as_they_are_written():
    texts = [link_rate_text(link_rate(text)).lower().replace(" ", "").removesuffix("/s") for text in crossover.RATES]
    assert texts == list(crossover.RATES)


def test_the_benchmark_is_run_in_a_bed_of_each_rate():
    words = crossover.command("netbed", link_rate("2.5gbit"), options("--hosts", "8", "--min", "64"), "name")
    assert words[:5] == ["netbed", "--hosts", "8", "--rate", "2500mbit"]
    benchmark = words[words.index("--") + 1 :]
    assert benchmark[1:4] == ["-m", "gqallreduce", "bench"]
    assert benchmark[benchmark.index("--min") + 1] == "64"
    assert benchmark[-len(crossover.SCHEMES) :] == list(crossover.SCHEMES)
    assert "unlimited" in crossover.command("netbed", None, options(), "name")


def executable(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_recorded_results_become_a_table_json_lines_and_a_plot(tmp_path, capsys):
    replay = f'while [ "$1" != --output ]; do shift; done; cp "{RECORDED}" "$2.jsonl"'
    bed = executable(tmp_path / "bed", replay)
    name = str(tmp_path / "made" / "crossover")
    status = crossover.run(options("--rates", "unlimited", "1gbit", "100mbit", "--output", name), bed)
    shown = capsys.readouterr().out
    assert status == 0
    for text in ("64 MiB", "100 Mbit/s", "unlimited*", "direct/onebit/ef", "ring/qsgd(bits=4)"):
        assert text in shown
    lines = [json.loads(line) for line in Path(f"{name}.jsonl").read_text().splitlines()]
    recorded = report.read(RECORDED)[1]
    assert lines[0]["kind"] == "machine"
    assert lines[0]["link"] == "paced links, 4 hosts"
    sums = [line for line in lines if line["kind"] == "sum"]
    assert [line["rate"] for line in sums] == [rate for rate in (1e8, 1e9, None) for _ in recorded]
    found = {line["scheme"]: line["wins"] for line in lines if line["kind"] == "crossover"}
    assert found["direct/onebit/ef"] == "at all up to 1 Gbit/s"
    assert Path(f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert xml.parse(f"{name}.svg").getroot().tag.endswith("svg")


def test_a_bed_that_cannot_be_made_ends_it_with_the_same_status_and_reason(tmp_path, capsys):
    bed = executable(tmp_path / "bed", "echo no bed here >&2; exit 77")
    assert crossover.run(options("--rates", "1gbit", "--output", str(tmp_path / "name")), bed) == 77
    assert "at 1 Gbit/s: no bed here" in capsys.readouterr().err
