"""`schemes` and `plan`: their tables say what the registry and the model say, and bad words are named."""

import argparse
import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest

import gqallreduce as gq
from gqallreduce import __main__, quantities
from gqallreduce.cli import needs, plan, schemes, tables
from gqallreduce.cli.report import Report
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling import model, profile
from gqallreduce.scheduling.topology import apart, in_hosts


def run(module, *words):
    parser = argparse.ArgumentParser(prog="gqallreduce")
    module.add_arguments(parser)
    return module.run(parser.parse_args(words))


@pytest.fixture(params=["rich", "plain"])
def printer(request, monkeypatch):
    """With rich, and without."""
    if request.param == "plain":
        found = importlib.util.find_spec
        monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None if name == "rich" else found(name))
    else:
        pytest.importorskip("rich")


def rows_of(text):
    """Words of every line of a table that has no rule in it."""
    return [line.split() for line in text.splitlines() if line.strip() and not set(line) <= set(" -─")]


@pytest.mark.parametrize("command", ["calibrate", "bench", "timeline", "report"])
def test_a_command_says_in_a_line_which_packages_it_needs(command, monkeypatch, capsys):
    found, gone = importlib.util.find_spec, {"rich", "matplotlib", "plotly"}
    monkeypatch.setattr(needs.importlib.util, "find_spec", lambda name: None if name in gone else found(name))
    assert __main__.main([command, *(["nowhere.json"] if command in ("timeline", "report") else ())]) == 2
    written = capsys.readouterr()
    assert re.fullmatch(rf"{command}: needs [a-z, ]+: pip install 'gqallreduce\[bench\]'\n", written.err)
    assert not written.out


def test_a_benchmark_without_mpi_says_so_too(monkeypatch):
    monkeypatch.setattr(needs, "BENCH", ("no_such_package",))
    monkeypatch.setattr(needs.lacking, "__defaults__", (needs.BENCH, "bench"))
    with pytest.raises(SystemExit, match="needs no_such_package: pip install"):
        Report()


# --- schemes ---


def test_schemes_has_a_row_for_everything_registered(printer, capsys):
    assert run(schemes) == 0
    rows = rows_of(capsys.readouterr().out)
    assert [row[:2] for row in rows[1:]] == [[entry.name, entry.kind] for entry in gq.schemes()]


def test_schemes_shows_options_with_their_defaults_and_whole_sources(printer, capsys):
    run(schemes)
    text = capsys.readouterr().out
    assert "bits=4, bucket=512, norm=max, zero_level=True" in text
    for entry in gq.schemes():
        assert entry.source in text
        assert entry.example in text


def test_schemes_can_show_one_kind(capsys):
    run(schemes, "--kind", "schedule")
    assert [row[0] for row in rows_of(capsys.readouterr().out)[1:]] == sorted(model.SCHEDULES)


@pytest.mark.parametrize("entry", gq.schemes(), ids=lambda entry: entry.name)
def test_schemes_explains_each_by_name_with_every_option(entry, capsys):
    assert run(schemes, entry.name) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{entry.name}\n\n")
    for option in entry.options:
        assert re.search(rf"^{option}$", text, re.MULTILINE) or "Options: those of `a" in text


def test_schemes_explains_no_name_that_is_not_known(capsys):
    with pytest.raises(SystemExit):
        run(schemes, "alk")
    assert "did you mean 'alq'" in capsys.readouterr().err


# --- quantities ---


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0), ("4096", 4096), ("4096B", 4096), ("64MiB", 64 << 20), ("100MB", 10**8), ("2.3MB", 2_300_000),
        ("1.5 GiB", 3 << 29), (".5kB", 500), ("1KB", 1000), ("1TB", 10**12), ("2KiB", 2048),
    ],
)  # fmt: skip
def test_sizes_have_decimal_and_binary_units(text, nbytes):
    assert quantities.nbytes(text) == nbytes


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100Gbit/s", 12.5e9), ("8bit/s", 1.0), ("12.5GB/s", 12.5e9), ("1GiB/s", 2.0**30), ("950Mbit/s", 118.75e6)],
)
def test_rates_are_in_bits_or_bytes(text, rate):
    assert quantities.bandwidth(text) == rate


@pytest.mark.parametrize(("text", "seconds"), [("2us", 2e-6), ("1.5 ms", 1.5e-3), ("500ns", 5e-7), ("0s", 0.0)])
def test_times_have_a_unit(text, seconds):
    assert quantities.seconds(text) == seconds


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (quantities.nbytes, "100XB"), (quantities.nbytes, "MB"), (quantities.nbytes, ""), (quantities.nbytes, "-1MB"),
        (quantities.nbytes, "nanMB"), (quantities.nbytes, "1.2.3MB"), (quantities.nbytes, "0.5B"),
        (quantities.nbytes, "100Mb"), (quantities.bandwidth, "10Gb/s"), (quantities.bandwidth, "0Gbit/s"),
        (quantities.bandwidth, "10G"), (quantities.seconds, "2"), (quantities.seconds, "2 min"),
        (quantities.count, "0"), (quantities.count, "1.5"), (quantities.count, "-3"), (quantities.count, "²"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_with_what_is_expected(read, text):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert repr(text) in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (200e6, "200 MB"), (1e9, "1 GB"), (5e15, "5000 TB")],
)
def test_bytes_are_shown_with_three_digits(value, text):
    assert quantities.bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 ns"), (4.2e-7, "420 ns"), (1e-6, "1 us"), (0.0123, "12.3 ms"), (1.0, "1 s"), (1234.5, "1234 s")],
)
def test_times_are_shown_with_three_digits(value, text):
    assert quantities.seconds_text(value) == text


# --- plan ---

WORDS = ("--ranks", "16", "--nbytes", "64MiB", "--bandwidth", "1Gbit/s", "--latency", "50us")


def test_plan_predicts_every_codec_on_every_schedule_and_dense_best_first(printer, capsys):
    assert run(plan, *WORDS) == 0
    rows = rows_of(capsys.readouterr().out)[1:-1]
    schemes_shown = {" ".join(row[:-7]) for row in rows}
    codecs = [entry for entry in gq.schemes() if entry.kind == "codec"]
    assert "dense" in schemes_shown
    assert len(rows) == len(codecs) * len(model.known(apart(16))) + 1
    for text in schemes_shown - {"dense"}:
        gq.Scheme.parse(text)


def test_plan_shows_the_models_numbers():
    profile = model.Profile(alpha=50e-6, beta=8e-9)
    elements = 16 << 20
    codecs = [gq.Scheme.parse("qsgd(bits=2)"), gq.Scheme.parse("onebit/ef")]
    found = plan.predictions(codecs, 16, elements, profile)
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)
    by_name = {each.scheme: each for each in found}
    assert by_name["dense"].seconds == model.predict_dense(16, 4 * elements, profile)
    for scheme in codecs:
        for schedule in model.known(apart(16)):
            each = by_name[f"{schedule}/{scheme}"]
            assert each.seconds == model.predict(schedule, scheme.codec, 16, elements, profile)
            assert each.bytes_sent == model.bytes_sent(schedule, scheme.codec, 16, elements)


@pytest.mark.parametrize("schedule", sorted(model.SCHEDULES))
@pytest.mark.parametrize("text", ["raw", "onebit", "qsgd(bits=4)"])
@pytest.mark.parametrize(("size", "elements"), [(2, 1 << 16), (4, 1 << 18), (8, 1 << 20)])
def test_predicted_bytes_are_those_a_rank_sends(schedule, text, size, elements):
    allreduce = LocalAllreduce(f"{schedule}/{text}", size)
    allreduce([np.ones(elements, np.float32) for _ in range(size)])
    predicted = model.bytes_sent(schedule, allreduce.scheme.codec, size, elements)
    assert max(spent.bytes_sent for spent in allreduce.spent) == pytest.approx(predicted, rel=0.01)


def test_with_many_ranks_headers_are_not_forgotten():
    onebit = gq.Scheme.parse("onebit").codec
    assert model.bytes_sent("direct", onebit, 10_000, 2_500_000) == 2 * 9_999 * (32 + 8 + 32)


def test_plan_prints_the_program_of_a_rank(capsys):
    assert run(plan, "--program", "direct/qsgd", "--ranks", "2", "--rank", "1") == 0
    assert (
        capsys.readouterr().out
        == """\
 0  Post     slot=0  source=0  wires=1@0
 1  Encode   slot=1  chunk=0  hop=0  author=1  own=True  alone=True
 2  Transmit slot=1  to=0
 3  Release  slot=1
 4  Wait     slot=0
 5  BeginSum chunk=1
 6  Decode   part=0.0  chunk=1  adds=True  result=False
 7  Release  slot=0
 8  Post     slot=2  source=0  wires=0@0
 9  Encode   slot=3  chunk=1  hop=1  author=1  own=False  alone=True
10  Transmit slot=3  to=0
11  Decode   part=3.0  chunk=1  adds=False  result=True
12  Release  slot=3
13  Wait     slot=2
14  Decode   part=2.0  chunk=0  adds=False  result=True
15  Release  slot=2
direct, rank 1 of 2: 16 instructions, which every lane runs.
"""
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["qsgd"], "expected a schedule before it, as in direct/qsgd"), (["direct/raw", "--rank", "2"], "--rank: got 2")],
)
def test_plan_says_which_program_it_cannot_print(words, complaint, capsys):
    assert run(plan, "--ranks", "2", "--program", *words) == 2
    assert complaint in capsys.readouterr().err


def test_plan_takes_cores_and_the_memory_of_a_node(capsys):
    words = [
        "--threads",
        "64",
        "--memory",
        "10GB/s",
        "--node-memory",
        "100GB/s",
        "--ranks-per-node",
        "4",
        "--message",
        "2us",
    ]
    assert run(plan, "--ranks", "64", "--nbytes", "100MB", *words) == 0
    shown = capsys.readouterr().out
    assert "2 us a message" in shown
    assert "memcpy at 10 GB/s on each of 64 cores, at most 25 GB/s for a rank" in shown


def test_plan_says_what_it_takes_from_a_profile(tmp_path, capsys):
    measured = profile.Profile(call=70e-6, overlap=0.5, dense=((1 << 10, 1e-5), (1 << 20, 1e-3)))
    jobs = profile.Class("Open MPI 5.0.11", (1, 1), "CPU", 1)
    path = str(profile.save(measured, jobs, {}, tmp_path / "profile.json"))
    for nbytes, beyond in (("1MiB", False), ("2MiB", True)):
        assert run(plan, "--ranks", "2", "--nbytes", nbytes, "--profile", path) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "70 us a call, " in shown
        assert ", 50% of the possible overlap. " in shown
        assert ("as the profile has it, beyond its largest size of 1.05 MB in proportion" in shown) == beyond


def test_plan_warns_of_a_profile_of_other_jobs(tmp_path, capsys):
    jobs = profile.Class("Open MPI 5.0.11", (2, 2, 1), "CPU", 1)
    path = str(profile.save(profile.Profile(), jobs, {}, tmp_path / "profile.json"))
    assert run(plan, "--ranks", "8", "--ranks-per-node", "4", "--nbytes", "1MiB", "--profile", path) == 0
    told = capsys.readouterr().err
    assert "was measured with 2, 2, 1 ranks on 3 hosts, not 4 ranks on 2 hosts; times may be far off" in told
    jobs = jobs._replace(ranks=(4, 4))
    path = str(profile.save(profile.Profile(), jobs, {}, tmp_path / "profile.json"))
    assert run(plan, "--ranks", "8", "--ranks-per-node", "4", "--nbytes", "1MiB", "--profile", path) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("each", "more"), [(1, set()), (8, {4})])
def test_plan_takes_a_hundred_thousand_ranks(each, more):
    codecs = [gq.Scheme.parse(text) for text in ("onebit/ef", "qsgd(bits=4)")]
    found = plan.predictions(codecs, in_hosts(100_000, each), 25_000_000, model.Profile())
    assert {each.rounds for each in found} == {None, 1, 2, 18, 34, 199_998} | more


@pytest.mark.parametrize("ranks", ["1", "2", "3"])
@pytest.mark.parametrize("nbytes", ["0", "4B"])
def test_plan_takes_the_smallest(ranks, nbytes, capsys):
    assert run(plan, "--ranks", ranks, "--nbytes", nbytes) == 0
    assert "dense" in capsys.readouterr().out


def test_plan_can_be_asked_for_some_codecs(capsys):
    assert run(plan, *WORDS, "--codecs", "qsgd(bits=2)", "raw") == 0
    assert len(rows_of(capsys.readouterr().out)) == 2 * len(model.known(apart(16))) + 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--codecs", "qsdg"), "did you mean 'qsgd'"),
        (("--codecs", "ring/raw"), "expected it without a schedule"),
        (("--nbytes", "6B"), "whole float32"),
        (("--ranks", "1000001"), "--ranks: got 1000001, expected 1000000 at most"),
        (("--nbytes", "2000TB"), "expected 1125899906842624 at most"),
    ],
)
def test_plan_says_what_is_wrong(words, complaint, capsys):
    assert run(plan, *WORDS, *words) == 2
    assert complaint in capsys.readouterr().err


def test_plan_names_the_argument_it_cannot_read(capsys):
    with pytest.raises(SystemExit) as caught:
        run(plan, "--ranks", "16", "--nbytes", "lots")
    assert caught.value.code == 2
    assert "--nbytes: got 'lots', expected a size" in capsys.readouterr().err


def test_neither_command_imports_mpi():
    program = (
        "import argparse, sys\n"
        "from gqallreduce.cli import plan, schemes\n"
        "parser = argparse.ArgumentParser(); plan.add_arguments(parser)\n"
        "plan.run(parser.parse_args(['--ranks', '4', '--nbytes', '1MB']))\n"
        "schemes.run(argparse.Namespace(kind=None, explained=[]))\n"
        "assert not any(name.split('.')[0] == 'mpi4py' for name in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_pipe_that_its_reader_has_closed_causes_no_traceback():
    """As in `plan | head`."""
    words = [sys.executable, "-m", "gqallreduce", "plan", "--ranks", "64", "--nbytes", "100MB"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        command.stdout.close()
        assert command.stderr.read() == ""
        assert command.wait() == 1
