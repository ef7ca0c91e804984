"""What docs/pytorch.md counts: the lines that a program has more than that of one process, beside DDP and Horovod."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import gqallreduce

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"
PROGRAM = re.compile(r"^```text\n# ([^:\n]+): (?:mpirun|torchrun|horovodrun) .*\n((?:.*\n)*?)```$", re.MULTILINE)
# What the programs leave out.
BEFORE = """
import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
import gqallreduce.torch as gqt

def Model():
    return torch.nn.Linear(20, 5)

def train(model, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 20)).sum().backward()
        optimizer.step()

"""


def programs():
    """name -> text of each program."""
    return dict(PROGRAM.findall(PAGE.read_text()))


def counted():
    """name -> lines, of the table."""
    table = PAGE.read_text().split("| with | lines | which |\n")[1].split("\n\n")[0]
    return {name.strip("`"): int(lines) for name, lines in re.findall(r"^\| ([^|]+) \| (\d+) \|", table, re.MULTILINE)}


def test_the_table_counts_the_lines_that_are_marked():
    marked = {name: len(re.findall(r"  # \+$", text, re.MULTILINE)) for name, text in programs().items()}
    assert len(marked) == 4
    assert marked == counted()


@pytest.mark.parametrize("name", [name for name in programs() if not name.startswith("Horovod")])
def test_a_program_with_these_lines_trains(name, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: make test-torch")
    script = tmp_path / "train.py"
    script.write_text(BEFORE + programs()[name])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    path = os.pathsep.join([str(Path(gqallreduce.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **alone, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
