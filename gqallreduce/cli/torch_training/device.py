"""Where a rank of a training computes."""

import torch

from gqallreduce.cli import machine


def device_of(name, comm):
    """The device called `name`: the host, or (cuda) a GPU, which the ranks of a node take in turn. Collective."""
    if name == "host":
        return torch.device("cpu")
    with machine.ranks_of_node(comm) as local:
        torch.cuda.set_device(local.rank % torch.cuda.device_count())
    return torch.device("cuda")
