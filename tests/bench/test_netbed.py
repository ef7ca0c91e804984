"""The bed of paced links: what it understands and tells each MPI; and, where a bed can be made, that it is one."""

import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gqallreduce.cli import machine

pytestmark = pytest.mark.slow

NETBED = Path(__file__).parents[2] / "bench" / "netbed"
KINDS = ("Open MPI 4", "Open MPI 5", "MPICH")


def loaded():
    """The script as a module; like Python, it finds what lies beside the script."""
    loader = importlib.machinery.SourceFileLoader("netbed", str(NETBED))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("netbed", loader))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.syspath_prepend(NETBED.parent)
        loader.exec_module(module)
    return module


netbed = loaded()
mpi = netbed.netbed_mpi


def in_bed(*words, **variables):
    """Runs bench/netbed; (status, output, errors)."""
    command = [sys.executable, NETBED, "--timeout", "60", *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def bed():
    """`in_bed`, where this machine can make one; else the test is skipped with netbed's own reason."""
    status, _, errors = in_bed("--hosts", "2", "--no-mpi", "--quiet", "--", "true")
    if status == netbed.IMPOSSIBLE:
        pytest.skip(errors.strip())
    assert (status, errors) == (0, "")
    return in_bed


@pytest.mark.parametrize(
    ("text", "bits"), [("1gbit", 10**9), ("2.5gbit", 2500 * 10**6), ("250mbit", 250 * 10**6), ("unlimited", None)]
)
def test_rates_are_read(text, bits):
    assert netbed.parse(["--rate", text, "--", "true"]).rate == bits


@pytest.mark.parametrize(("text", "seconds"), [("100us", 1e-4), ("2ms", 2e-3), ("1.5s", 1.5)])
def test_times_are_read(text, seconds):
    assert netbed.parse(["--delay", text, "--queue", text, "--", "true"]).delay == pytest.approx(seconds)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--rate", "1gbit", "--"],
        *([*words, "--", "true"] for words in (["--rate", "1"], ["--rate", "0mbit"], ["--rate", "-1gbit"])),
        *([*words, "--", "true"] for words in (["--hosts", "0"], ["--hosts", "255"], ["--delay", "1"], ["--nonsense"])),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(words, capsys):
    with pytest.raises(SystemExit) as refusal:
        netbed.parse(words)
    assert refusal.value.code == 2


def test_the_options_of_the_program_are_its_own():
    options = netbed.parse(["--hosts", "3", "--", "python", "x.py", "--hosts", "5", "--quiet"])
    assert (options.hosts, options.quiet) == (3, False)
    assert options.command == ["python", "x.py", "--hosts", "5", "--quiet"]


@pytest.mark.parametrize("bits", [10**6, 10**8, 10**9, 10**11])
def test_a_paced_link_lets_a_whole_segment_pass_and_buffers_what_it_is_told(bits):
    kind, *words = netbed.pacing(bits, queue=0.02)
    values = dict(zip(words[::2], words[1::2], strict=True))
    assert (kind, values["rate"]) == ("tbf", f"{bits}bit")
    assert netbed.segment(bits) < int(values["burst"]) <= max(2 * netbed.FRAME, netbed.BURST * bits / 8)
    assert int(values["limit"]) >= max(0.02 * bits / 8, int(values["burst"]))


def test_a_delay_is_netem_with_room_for_what_is_under_way():
    words = netbed.pacing(10**9, queue=0.02, delay=0.005)
    assert words[:3] == ["netem", "delay", "5000us"]
    assert words[-2:] == ["rate", "1000000000bit"]
    assert int(words[words.index("limit") + 1]) * netbed.FRAME >= 0.025 * 10**9 / 8
    assert "rate" not in netbed.pacing(None, queue=0.02, delay=0.005)


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", "Open MPI 4"),
        ("mpirun (Open MPI) 5.0.11\n", "Open MPI 5"),
        ("HYDRA build details:\n    Version:  4.0.2", "MPICH"),
    ],
)
def test_the_mpi_is_known_by_its_version(version, kind):
    assert mpi.kind_of(version) == kind


def test_another_mpi_is_refused_by_name():
    with pytest.raises(mpi.NotKnown, match="Intel"):
        mpi.kind_of("Intel(R) MPI Library for Linux")


@pytest.mark.parametrize("ranks_per_host", [1, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_mpi_is_told_its_hosts_its_interface_and_how_to_reach_them(kind, ranks_per_host):
    words = mpi.words_before(kind, "/somewhere/mpirun", 3, ranks_per_host, netbed.SSH)
    assert words[0] == "/somewhere/mpirun"
    assert words[words.index("-n") + 1] == str(3 * ranks_per_host)
    assert f"h0:{ranks_per_host},h1:{ranks_per_host},h2:{ranks_per_host}" in words
    assert str(netbed.SSH) in words
    assert "eth0" in words


@pytest.mark.parametrize(
    ("kind", "ranks_per_host", "transports"),
    [("Open MPI 4", 1, "tcp,self"), ("Open MPI 4", 2, "tcp,self,vader"), ("Open MPI 5", 2, "tcp,self,sm")],
)
def test_open_mpi_has_shared_memory_only_for_ranks_that_share_a_host(kind, ranks_per_host, transports):
    words = mpi.words_before(kind, "mpirun", 2, ranks_per_host, netbed.SSH)
    assert words[words.index("btl") + 1] == transports


def test_mpirun_is_the_one_beside_the_program(tmp_path, monkeypatch):
    for folder in ("mine", "other"):
        (tmp_path / folder).mkdir()
        for name in ("python", "mpirun"):
            (tmp_path / folder / name).touch(mode=0o755)
    (tmp_path / "other" / "lonely").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert mpi.find_mpirun(str(tmp_path / "mine" / "python")) == str(tmp_path / "mine" / "mpirun")
    assert mpi.find_mpirun("python") == str(tmp_path / "other" / "mpirun")
    assert mpi.find_mpirun("nonsense") == str(tmp_path / "other" / "mpirun")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(mpi.NotKnown, match="no mpirun"):
        mpi.find_mpirun("nonsense")


def test_a_missing_tool_is_named_with_its_package(tmp_path, monkeypatch):
    for tool in netbed.PACKAGES.keys() - {"tc"}:
        (tmp_path / tool).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(netbed.Impossible, match="no tc here: install iproute2"):
        netbed.require_tools()


def test_a_link_that_cannot_be_paced_is_told(tmp_path):
    tc = tmp_path / "tc"
    tc.write_text("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2\nexit 2\n")
    tc.chmod(0o755)
    with pytest.raises(netbed.Impossible, match=r"link of eth0 cannot be paced: .*no sch_tbf .*qdisc kind is unknown"):
        netbed.pace([str(tc)], "eth0", 10**9, 0.05)


def test_the_benchmark_names_the_link_as_the_bed_does():
    options = netbed.parse(["--rate", "250mbit", "--ranks-per-host", "2", "--delay", "1ms", "--", "true"])
    said = "paced link, 250 Mbit/s, 4 hosts, 2 ranks each, 1 ms delay"
    assert machine.link(4, netbed.environment(options, [7, 8, 9, 10], "here")) == said


def test_hosts_have_names_and_reach_each_other(bed):
    script = "hostname && netbed_ssh -x h1 hostname '&&' exit 5"
    status, output, errors = bed("--hosts", "2", "--no-mpi", "--", "sh", "-c", script)
    assert (status, output) == (5, "h0\nh1\n")
    assert "paced link, 1 Gbit/s, 2 hosts" in errors
    status, _, errors = bed("--hosts", "2", "--no-mpi", "--", "netbed_ssh", "h2", "true")
    assert (status, errors.splitlines()[0]) == (255, "netbed_ssh: this bed has no host h2")


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm on this system")
def test_beds_share_no_memory(bed):
    """MPIs name files there by host and process number, which two beds at once have alike."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as outside:
        inside = f"{outside.name}.inside"  # a name that no other run has left behind
        script = f"ls /dev/shm && touch {inside} && netbed_ssh h1 ls /dev/shm"
        status, output, errors = bed("--hosts", "2", "--no-mpi", "--", "sh", "-c", script)
        assert (status, output) == (0, f"{os.path.basename(inside)}\n"), errors
        assert os.path.exists(outside.name)
        assert not os.path.exists(inside)


PROGRAM = """
import os
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
together = comm.Split_type(MPI.COMM_TYPE_SHARED).size
data = np.full(1 << 18, comm.rank, np.float32)
comm.Allreduce(MPI.IN_PLACE, data)
assert (data == comm.size * (comm.size - 1) / 2).all()
found = comm.gather((os.uname().nodename, together))
if comm.rank == 0:
    print(found)
"""


def test_ranks_of_a_host_are_together_and_what_others_get_crosses_the_links(bed):
    """Without the options that each MPI needs it takes shared memory between hosts, silently."""
    words = ["--hosts", "2", "--ranks-per-host", "2", "--rate", "10gbit", "--"]
    status, output, errors = bed(*words, sys.executable, "-c", PROGRAM, OMP_NUM_THREADS="1")
    assert status == 0, errors
    assert output == "[('h0', 2), ('h0', 2), ('h1', 2), ('h1', 2)]\n"
    counts = re.findall(r"h\d sent ([\d,]+) and received ([\d,]+) bytes", errors)
    assert len(counts) == 2
    assert all(int(number.replace(",", "")) > 1 << 20 for pair in counts for number in pair)


def test_a_program_that_does_not_end_is_ended(bed):
    status, _, errors = bed("--hosts", "1", "--no-mpi", "--timeout", "0.5", "--", "sleep", "1000")
    assert status == netbed.TIMED_OUT
    assert "ended after 0.5 s" in errors


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_nothing_outlives_the_bed_however_it_ends(bed, signal):
    nap = f"1000.{os.getpid()}"
    script = f"(setsid sleep {nap} &) ; exec sleep {nap}"
    process = subprocess.Popen([sys.executable, NETBED, "--hosts", "1", "--no-mpi", "--", "sh", "-c", script])
    try:
        assert in_time(lambda: sleepers(nap) == 2)
        subprocess.run(["sh", "-c", f"kill -{signal} {process.pid}"], check=True)
        assert in_time(lambda: sleepers(nap) == 0)
    finally:
        process.kill()
        process.wait()


def in_time(condition):
    """Does the condition come true within ten seconds?"""
    for _ in range(100):
        if condition():
            return True
        time.sleep(0.1)
    return False


def sleepers(nap):
    """How many processes sleep for exactly so long."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes() == f"sleep\0{nap}\0".encode()
        except OSError:  # it has ended in the meantime
            continue
    return found
