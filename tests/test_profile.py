"""Profiles of machines: written, read, refused where they are damaged, and what the cost model makes of them."""

import dataclasses
import json

import numpy as np
import pytest

import gqallreduce as gq
from gqallreduce.cli import calibrate
from gqallreduce.scheduling import model
from gqallreduce.scheduling.profile import Class, Profile, find, folder, load, save
from gqallreduce.scheduling.topology import in_hosts

JOBS = Class("Open MPI 5.0.11", (2, 2, 2), "Some (R) CPU @ 2.0GHz", 8)
MEASURED = Profile(
    call=2e-5, alpha=1e-4, software=3e-6, beta=8e-9, near=1e-10, copy=1e-10, threads=4, memory=2e-11, overlap=0.25,
    rates={"onebit": (1.5, 0.5)}, dense=((4, 1e-5), (1 << 10, 2e-5), (1 << 20, 1e-3)), source="here",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_what_is_written_is_found_again_by_jobs_like_it():
    path = save(MEASURED, JOBS, {"messages": {"within a host": [[4, 1e-6]]}})
    assert path.parent == folder()
    assert path.name == "open-mpi-5.0.11_3x2_some-r-cpu-2.0ghz_8-cores.json"
    assert find(JOBS) == dataclasses.replace(MEASURED, source=str(path))
    assert json.loads(path.read_text())["messages"] == {"within a host": [[4, 1e-6]]}
    assert list(folder().iterdir()) == [path]  # nothing is left beside it


@pytest.mark.parametrize(
    "other",
    [
        {"mpi": "MPICH 5.0.2"}, {"ranks": (2, 2)}, {"ranks": (3, 2, 1)}, {"ranks": (6,)}, {"processor": "Another"},
        {"cores": 4},
    ],
)  # fmt: skip
def test_other_jobs_have_the_usual_one(other):
    save(MEASURED, JOBS, {})
    assert find(JOBS._replace(**other)) == Profile()


def test_hosts_with_different_numbers_of_ranks_have_a_profile_too():
    uneven = JOBS._replace(ranks=(3, 2, 1))
    save(MEASURED, uneven, {})
    assert find(uneven).alpha == 1e-4
    assert find(uneven._replace(ranks=(3, 3))).alpha == Profile().alpha


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: "{",
        lambda content: "[]",
        lambda content: "[" * 100_000,
        lambda content: "\udcff",
        lambda content: json.dumps(content | {"for": {}}),
        lambda content: _with(content, dense=[[float("inf"), 1.0]]),
        lambda content: _with(content, a_pass=1.0),
        lambda content: json.dumps(content | {"version": 2}),
        lambda content: json.dumps(content | {"format": "another"}),
        lambda content: json.dumps({name: value for name, value in content.items() if name != "profile"}),
        lambda content: _with(content, alpha=-1.0),
        lambda content: _with(content, beta=float("nan")),
        lambda content: _with(content, copy="fast"),
        lambda content: _with(content, threads=0),
        lambda content: _with(content, overlap=1.1),
        lambda content: _with(content, more=1.0),
        lambda content: _with(content, dense=[[4, 1e-5], [4, 1e-5]]),
        lambda content: _with(content, dense=[[4, 0.0]]),
        lambda content: _with(content, rates={"onebit": [1.0]}),
    ],
)
def test_a_damaged_one_is_refused_by_its_path_and_passed_over(damage):
    path = save(MEASURED, JOBS, {})
    path.write_text(damage(json.loads(path.read_text())), errors="surrogateescape")
    with pytest.raises(ValueError, match=r"is no profile: .*; make another by `python -m gqallreduce calibrate`"):
        load(path)
    usual = find(JOBS)
    assert dataclasses.replace(usual, source=Profile.source) == Profile()
    assert str(path) in usual.source


def _with(content, **values):
    return json.dumps(content | {"profile": content["profile"] | values})


def test_dense_sums_are_as_measured_and_between_sizes_on_a_line():
    sizes = [1, 4, 64, 1 << 10, 1 << 15, 1 << 20, 1 << 22]
    seconds = [MEASURED.dense_seconds(size) for size in sizes]
    assert seconds == sorted(seconds)
    assert [seconds[at] for at in (0, 1, 3, 5, 6)] == pytest.approx([1e-5, 1e-5, 2e-5, 1e-3, 4e-3])
    assert seconds[2] == pytest.approx(np.sqrt(2) * 1e-5)  # half the way from 4 to 1024, as powers
    assert model.predict_dense(6, 1 << 10, MEASURED) == seconds[3]


def test_the_model_takes_all_that_is_measured():
    codec, topology, usual = gq.Scheme.parse("onebit").codec, in_hosts(6, 2), Profile()
    before = model.predict("hierarchical", codec, topology, 1 << 20, usual)
    for change in ({"call": 1e-3}, {"near": 1e-8}, {"alpha": 1e-3}, {"rates": {"onebit": (50.0, 50.0)}}):
        assert model.predict("hierarchical", codec, topology, 1 << 20, dataclasses.replace(usual, **change)) > before
    assert "predicted for here" in model.choose(codec, topology, 1 << 20, MEASURED)[1]


@pytest.mark.parametrize("factors", [(2e-5, 1e-4, 3e-6), (0.0, 1e-4, 3e-6), (2e-5, 0.0, 0.0)])
def test_the_fit_finds_what_times_are_made_of(factors):
    terms = np.array([[1.0, 2, 6], [1, 4, 4], [1, 6, 6], [1, 1, 3], [1, 2, 21]])
    assert calibrate.fit(terms, terms @ np.array(factors)) == pytest.approx(factors, rel=1e-6, abs=1e-12)


def test_no_factor_of_a_fit_is_negative():
    terms = np.array([[1.0, 1], [1, 2], [1, 3]])
    found = calibrate.fit(terms, np.array([3.0, 2.0, 1.0]))
    assert min(found) >= 0
    assert found[1] == 0


def test_the_slope_is_that_of_the_largest_messages():
    assert calibrate.slope([(4, 1.0), (100, 2.0), (200, 4.0)]) == pytest.approx(0.02)
    assert calibrate.slope([]) == 0
