"""Pairwise-exchange reduce-scatter, then allgather: the poster's algorithm, also called two-shot.

Every rank encodes each chunk of its vector once, for the chunk's owner; the owner adds its own chunk exactly, then
the others' in ascending order of rank, and encodes the finished sum once for all.
Destinations are staggered (rank + 1, rank + 2, ...), so that no two ranks send to the same one at a time.

Cost: 2(P-1) alpha + 2 n (P-1)/P beta + n gamma.  Encodings per contribution: 2.
"""

from gqallreduce.scheduling.counts import Counts
from gqallreduce.scheduling.schedule import Encode, Recv, Send, Wire, alone, register
from gqallreduce.scheduling.topology import Topology


def _counted(rank: int, topology: Topology) -> Counts:
    found, size = Counts(), topology.size
    near, far = topology.others(rank)
    for contributions in 1, size:
        found.send(near, near, contributions, near=True)
        found.send(far, far, contributions, near=False)
    found.encode(size)
    found.receive(2 * (size - 1))
    found.round(far > 0, 2)
    return found


@register(
    "direct",
    chunks=lambda topology: topology.size,
    error_holders=lambda chunk, topology: alone(chunk),
    contributions=lambda hop, topology: topology.size if hop else 1,
    scatter_rounds=lambda topology: 1,
    counted=_counted,
    cost="2(P-1) alpha + 2n(P-1)/P beta + n gamma",
    source="Dryden et al., MLHPC 2016 (pairwise exchange); Seide et al., Interspeech 2014; differs: the owner adds in "
    "rank order and keeps the decoded sum",
)
def direct(rank: int, topology: Topology):
    """Reduce-scatter by pairwise exchange, then allgather of the owners' bytes."""
    size = topology.size
    shifts = range(1, size)
    scatter, gather = [], [Encode(rank, 1, alone(rank))]
    for shift in shifts:
        to, source = (rank + shift) % size, (rank - shift) % size
        scatter += [
            Encode(to, 0, alone(rank)),
            Send(to, (Wire(to, rank),)),
            Recv(source, (Wire(rank, source),), reduce=True),
        ]
        gather += [Send(to, (Wire(rank, rank),)), Recv(source, (Wire(source, source),), reduce=False)]
    return tuple(scatter), tuple(gather)
