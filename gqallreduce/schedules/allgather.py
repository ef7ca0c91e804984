"""Everyone's bytes to everyone: one round, one encoding, and every rank adds up the same P decoded vectors.

All add in ascending order of rank, their own decoded vector in its place among the others, so that all have the same
sum. Destinations are staggered (rank + 1, rank + 2, ...), so that no two ranks send to the same one at a time.
For few ranks or few bytes; a rank holds the messages of all others, one lane at a time, in as many lanes as keep these
below twice the vector or 16 MiB.

Cost: (P-1) alpha + n (P-1) beta + n P gamma.  Encodings per contribution: 1.
"""

from gqallreduce.scheduling.counts import Counts
from gqallreduce.scheduling.schedule import Encode, Recv, Send, Wire, alone, register
from gqallreduce.scheduling.topology import Topology


def _counted(rank: int, topology: Topology) -> Counts:
    found, (near, far) = Counts(), topology.others(rank)
    found.encode(1)
    found.send(near, near, 1, near=True)
    found.send(far, far, 1, near=False)
    found.receive(near + far)
    found.round(far > 0)
    return found


@register(
    "allgather",
    chunks=lambda topology: 1,
    error_holders=lambda chunk, topology: range(topology.size),
    contributions=lambda hop, topology: 1,
    counted=_counted,
    held=lambda topology: topology.size,
    cost="(P-1) alpha + n(P-1) beta + nP gamma",
    source="Alistarh et al., QSGD, NeurIPS 2017 (algorithm 1: broadcast and decode all); differs: one fixed order of "
    "additions",
)
def allgather(rank: int, topology: Topology):
    """One exchange of all encoded vectors."""
    size = topology.size
    moves = [Encode(0, 0, alone(rank))]
    for shift in range(1, size):
        moves.append(Send((rank + shift) % size, (Wire(0, rank),)))
        source = (rank - shift) % size
        moves.append(Recv(source, (Wire(0, source),), reduce=True))
    return (tuple(moves),)
