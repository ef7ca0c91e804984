"""What a benchmark says about where it ran, and how it chooses what fits there."""

import os
from pathlib import Path

import pytest

from gqallreduce.cli import machine
from gqallreduce.cli.bench import BUFFERS, LARGEST, largest_side, sides

GIB = 1 << 30


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("", 1)),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, ("OMPI_COMM_WORLD_SIZE", 4)),
        ({"PMI_SIZE": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "64"}, ("PMI_SIZE", 3)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "64"}, ("SLURM_NTASKS", 64)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "64", "SLURM_STEP_NUM_TASKS": "8"}, ("SLURM_STEP_NUM_TASKS", 8)),
        ({"SLURM_NTASKS": "64"}, ("", 1)),  # inside an allocation, not started by srun
        ({"PMI_SIZE": ""}, ("", 1)),
    ],
)
def test_the_launcher_says_how_many_ranks_it_started(environ, expected):
    assert machine.launched(environ) == expected


def test_a_job_of_singletons_is_told_from_a_real_one():
    environ = {"SLURM_PROCID": "0", "SLURM_NTASKS": "64"}
    assert machine.wrong_launcher(64, environ) == ""
    assert machine.wrong_launcher(1, {}) == ""
    complaint = machine.wrong_launcher(1, environ)
    assert "1 of the 64 ranks" in complaint
    assert "SLURM_NTASKS" in complaint


@pytest.mark.parametrize("ranks_here", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("free", [GIB // 4, GIB, 23 * GIB, 4000 * GIB])
def test_the_default_maximum_is_the_largest_power_of_two_that_fits(free, ranks_here):
    side = largest_side(free // 2, ranks_here)

    def need(side):
        return BUFFERS * 4 * side * side * ranks_here

    assert need(side) <= free / 2
    assert side == LARGEST or need(2 * side) > free / 2


def test_sides_double_up_to_the_maximum():
    assert sides(64, 8192) == [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    assert sides(100, 399) == [100, 200]
    assert sides(64, 64) == [64]


def test_free_memory_is_less_where_a_cgroup_bounds_it(tmp_path):
    own = tmp_path / "job" / "step"
    own.mkdir(parents=True)
    (tmp_path / "membership").write_text("1:cpu:/elsewhere\n0::/job/step\n")
    for folder, limit, used in [(own, "max", "10"), (tmp_path / "job", "1000", "300")]:
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
    assert list(machine.cgroup_rest(tmp_path / "membership", tmp_path)) == [700]
    assert list(machine.cgroup_rest(tmp_path / "absent", tmp_path)) == []
    assert machine.free_memory() > 0


def test_the_link_is_named_by_the_test_bed_or_by_the_nodes():
    assert machine.link(1, {}) == "shared memory"
    assert machine.link(4, {}) == "network between 4 nodes"
    assert machine.link(4, {"GQALLREDUCE_LINK": "paced link"}) == "paced link"
    assert machine.link(1, {"GQALLREDUCE_LINK": "paced link"}) == "shared memory"


def test_the_description_names_no_host_and_no_folder():
    text = str(machine.describe(ranks=1))
    assert os.uname().nodename not in text.replace(machine.processor(), "")
    assert str(Path.home()) not in text
    assert machine.command(["/somewhere/run.py", "--max", "512"]) == "run.py --max 512"


def test_the_last_level_cache_is_a_plausible_size():
    assert 1 << 17 <= machine.last_level_cache() <= 1 << 34
