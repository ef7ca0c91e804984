"""Bandwidth-optimal ring: a reduce-scatter whose partial sums travel right, then an allgather that forwards bytes.

Every hop adds its own value exactly, encodes the partial sum and adds the error of that encoding to its residual. Rank
r ends with chunk r.

Cost: 2(P-1) alpha + 2 n (P-1)/P beta + n (P-1)/P gamma.  Encodings per contribution: up to P.

A rank encodes another chunk at every hop, so that from hop 65535 on the number may stay: no random bits are used twice.
"""

from gqallreduce.scheduling.counts import Counts, Sent
from gqallreduce.scheduling.schedule import Encode, Recv, Send, Wire, alone, register
from gqallreduce.scheduling.topology import Topology

_LAST_HOP = 2**16 - 1


def _counted(rank: int, topology: Topology) -> Counts:
    found, size, hosts = Counts(), topology.size, topology.hosts
    right, left = (hosts[(rank + step) % size] == hosts[rank] for step in (1, -1))
    partial = min(size - 1, _LAST_HOP)  # those of 1, 2, ... contributions
    found.sent.update({Sent(each, exact=False, near=right): 1 for each in range(1, partial + 1)})
    found.send(2 * (size - 1), 2 * (size - 1) - partial, size, near=right)
    found.encode(size)
    found.receive(2 * (size - 1))
    found.round(not (right and left), max(1, 2 * (size - 1)))
    return found


@register(
    "ring",
    chunks=lambda topology: topology.size,
    error_holders=lambda chunk, topology: alone(chunk),
    contributions=lambda hop, topology: topology.size if hop == _LAST_HOP else hop + 1,
    counted=_counted,
    scatter_rounds=lambda topology: topology.size - 1,
    cost="2(P-1) alpha + 2n(P-1)/P beta + n(P-1)/P gamma",
    source="Patarasuk and Yuan, JPDC 69(2), 2009; differs: partial sums are encoded on every hop",
)
def ring(rank: int, topology: Topology):
    """Ring reduce-scatter (each hop re-encodes), then a ring allgather of unchanged bytes."""
    size = topology.size
    right, left = (rank + 1) % size, (rank - 1) % size
    rounds = []
    for hop in range(size - 1):
        out, into = (rank - hop - 1) % size, (rank - hop - 2) % size
        rounds.append(
            (
                Encode(out, min(hop, _LAST_HOP), alone(rank)),
                Send(right, (Wire(out, rank),)),
                Recv(left, (Wire(into, left),), reduce=True),
            )
        )
    encode = (Encode(rank, min(size - 1, _LAST_HOP), alone(rank)),)
    for hop in range(size - 1):
        out, into = (rank - hop) % size, (rank - hop - 1) % size
        send = Send(right, (Wire(out, out),))
        receive = Recv(left, (Wire(into, into),), reduce=False)
        rounds.append((*encode, send, receive))
        encode = ()
    return tuple(rounds) if size > 1 else (encode,)
