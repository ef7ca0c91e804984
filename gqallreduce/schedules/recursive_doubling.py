"""Recursive doubling for any P: log2 P rounds, in each of which pairs exchange their whole partial sum.

With p2 the largest power of two <= P, the P - p2 ranks above fold their vector into a rank below first, and are sent
the last round's bytes at the end. Ranks that hold the same partial sum encode it with one stream, as one author, so
that all of them keep the same bits; each adds its slice of that one error to its residual.

Cost: (log2 p2 + 2) alpha + n (log2 p2 + 2) beta + n (log2 p2 + 1) gamma.  Encodings per contribution: log2 p2,
and one more if folded.
"""

from gqallreduce.scheduling.schedule import Encode, Recv, Send, Wire, alone, power_of_two, register
from gqallreduce.scheduling.topology import Topology


def _contributions(hop: int, topology: Topology) -> int:
    size = topology.size
    doubled = 1 << max(hop - 1, 0)
    return doubled + min(doubled, size - power_of_two(size)) if hop else 1


@register(
    "recursive_doubling",
    chunks=lambda topology: 1,
    error_holders=lambda chunk, topology: range(power_of_two(topology.size)),
    contributions=_contributions,
    cost="(log2 P + 2) alpha + n(log2 P + 2) beta + n(log2 P + 1) gamma",
    source="Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; differs: equal partial sums are one encoder's",
)
def recursive_doubling(rank: int, topology: Topology):
    """Fold to a power of two, double, unfold."""
    size = topology.size
    p2 = power_of_two(size)
    rest = size - p2
    if rank >= p2:
        mate = rank - p2
        fold = (Encode(0, 0, alone(rank)), Send(mate, (Wire(0, rank),)))
        return fold, (Recv(mate, _last_wires(p2), reduce=False),)
    rounds = []
    if rank < rest:
        rounds.append((Recv(p2 + rank, (Wire(0, p2 + rank),), reduce=True),))
    distance, hop = 1, 1
    while distance < p2:
        low = rank // distance * distance
        mate = rank ^ distance
        rounds.append(
            (
                Encode(0, hop, range(low, low + distance)),
                Send(mate, (Wire(0, low),)),
                Recv(mate, (Wire(0, low ^ distance),), reduce=True),
            )
        )
        distance, hop = distance * 2, hop + 1
    if size == 1:
        rounds.append((Encode(0, hop, alone(rank)),))
    if rank < rest:
        rounds.append((Send(p2 + rank, _last_wires(p2)),))
    return tuple(rounds)


def _last_wires(p2: int) -> tuple[Wire, ...]:
    """The two byte strings of the last round: those of the lower and of the upper half."""
    return Wire(0, 0), Wire(0, p2 // 2)
