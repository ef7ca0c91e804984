"""A transformer that predicts characters, trained over a slow link: `mpirun -n 4 python examples/torch_characters.py`.

Local SGD: each rank trains by itself, and every 10 steps the changes of their parameters are averaged, compressed. The
text is that of Python's own standard library; nothing is downloaded. The model, the text and the choice of a device are
this package's own (`gqallreduce.cli`), and may change: in a program of yours they are what you have.
"""

import argparse

import torch
from mpi4py import MPI

import gqallreduce.torch as gqt
from gqallreduce.cli.torch_training.device import device_of
from gqallreduce.cli.torch_training.text import ALPHABET, Text
from gqallreduce.cli.torch_training.transformer import Transformer, loss_of


def main(words=None, comm=MPI.COMM_WORLD):
    """Trains; the loss of the common model on text that was not trained on, alike on all ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", default="*norm*=raw; *=qsgd(bits=4)")
    parser.add_argument("--every", type=int, default=10, help="steps between two exchanges (10)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank (4)")
    parser.add_argument("--length", type=int, default=64, help="characters in a sequence (64)")
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="cuda: a GPU for each rank, in turn")
    options = parser.parse_args(words)

    device = device_of(options.device, comm)
    text, random = Text(), torch.Generator().manual_seed(comm.rank)  # each rank draws its own sequences
    model = Transformer(ALPHABET, options.layers, options.width, options.length).to(device)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with gqt.LocalSGD(model, inner, gqt.mean, every=options.every, rules=options.rules, comm=comm) as local:
        for step in range(1, options.steps + 1):
            inner.zero_grad()
            characters, following = text.batch(random, options.batch, options.length)
            loss = loss_of(model, characters.to(device), following.to(device))
            loss.backward()
            if local.step() and comm.rank == 0 and step % 50 < options.every:
                sent = sum(each.reducer.stats.bytes_sent for each in local.fragments)
                print(f"step {step}: loss {loss.item():.3f} on rank 0; the last exchange sent {sent / 1024:.0f} KiB")
        local.compare()
        with torch.no_grad(), local.outer_model():  # the common model
            characters, following = text.batch(torch.Generator().manual_seed(0), 64, options.length, validation=True)
            found = loss_of(model, characters.to(device), following.to(device)).item()
    if comm.rank == 0:
        print(f"validation loss {found:.3f} nats per character")
    return found


if __name__ == "__main__":
    main()
