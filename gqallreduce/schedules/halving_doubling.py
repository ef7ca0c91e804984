"""Rabenseifner's algorithm for any P: a reduce-scatter by recursive halving, an allgather by recursive doubling.

With p2 the largest power of two <= P, the P - p2 ranks above fold their vector into a rank below first, and are sent
the finished bytes at the end. In the scatter half, pairs at distance p2/2, p2/4, ... 1 each send the half of their
chunks that the other goes on with; the sender alone holds that partial sum, encodes it and keeps the error in its
residual. Rank r ends with chunk r, encodes it once and keeps the error; from then on these bytes travel unchanged.

Cost: (2 log2 p2 + 2) alpha + n (2 (p2-1)/p2 + 2) beta + 2 n gamma.  Encodings per contribution: log2 p2 + 1,
and one more if folded.
"""

from gqallreduce.scheduling.counts import Counts
from gqallreduce.scheduling.schedule import Encode, Recv, Send, Wire, alone, power_of_two, register
from gqallreduce.scheduling.topology import Topology


def _contributions(hop: int, topology: Topology) -> int:
    size = topology.size
    p2 = power_of_two(size)
    halved = 1 << max(hop - 1, 0)
    return halved + min(halved, -(-(size - p2) * halved // p2)) if hop else 1


def _scatter_rounds(topology: Topology) -> int | None:
    """Where some ranks fold, these have no chunk of their own."""
    p2 = power_of_two(topology.size)
    return p2.bit_length() - 1 if p2 == topology.size else None


def _counted(rank: int, topology: Topology) -> Counts:
    found, size, hosts = Counts(), topology.size, topology.hosts
    p2 = power_of_two(size)
    folded = rank ^ p2

    def meet(mate: int, given: int, taken: int, contributions: int = size) -> None:
        near = hosts[mate] == hosts[rank]
        found.send(given > 0, given, contributions, near)
        found.receive(taken)
        found.round(not near)

    if rank >= p2:
        found.encode(p2)
        meet(folded, p2, 0, 1)
        meet(folded, 0, p2)
        return found
    found.encode(p2)
    if folded < size:
        meet(folded, 0, p2)
    blocks = [p2 >> hop for hop in range(1, p2.bit_length())]
    for hop, block in enumerate(blocks, 1):
        meet(rank ^ block, block, block, _contributions(hop, topology))
    for block in reversed(blocks):
        meet(rank ^ block, block, block)
    if folded < size:
        meet(folded, p2, 0)
    if size == 1:
        found.round(far=False)
    return found


@register(
    "halving_doubling",
    chunks=lambda topology: power_of_two(topology.size),
    error_holders=lambda chunk, topology: alone(chunk),
    contributions=_contributions,
    scatter_rounds=_scatter_rounds,
    counted=_counted,
    cost="(2 log2 P + 2) alpha + n(2(P-1)/P + 2) beta + 2n gamma",
    source="Rabenseifner, ICCS 2004; Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; differs: partial sums are "
    "encoded when sent, finished chunks once",
)
def halving_doubling(rank: int, topology: Topology):
    """Fold to a power of two, halve, double, unfold."""
    size = topology.size
    p2 = power_of_two(size)
    if rank >= p2:
        mate, fold = rank - p2, [Encode(chunk, 0, alone(rank)) for chunk in range(p2)]
        return (*fold, Send(mate, _by(rank, range(p2)))), (Recv(mate, _finished(range(p2)), reduce=False),)
    folded = p2 + rank
    rounds = [*_halving(rank, p2), *_doubling(rank, p2)]
    if folded < size:
        rounds.insert(0, (Recv(folded, _by(folded, range(p2)), reduce=True),))
        rounds.append((Send(folded, _finished(range(p2))),))
    return tuple(rounds)


def _halving(rank: int, p2: int):
    """Rounds at distance p2/2, ... 1: keep the block of chunks that holds one's own, send the mate's."""
    for hop in range(1, p2.bit_length()):
        distance = p2 >> hop
        mate = rank ^ distance
        given = _block(mate, distance)
        yield (
            *(Encode(chunk, hop, alone(rank)) for chunk in given),
            Send(mate, _by(rank, given)),
            Recv(mate, _by(mate, _block(rank, distance)), reduce=True),
        )


def _doubling(rank: int, p2: int):
    """Rounds at distance 1, ... p2/2: exchange blocks of finished chunks; the first begins with one's own."""
    encode = (Encode(rank, p2.bit_length(), alone(rank)),)
    if p2 == 1:
        yield encode
    for shift in range(p2.bit_length() - 1):
        distance = 1 << shift
        mate = rank ^ distance
        send = Send(mate, _finished(_block(rank, distance)))
        yield *encode, send, Recv(mate, _finished(_block(mate, distance)), reduce=False)
        encode = ()


def _block(rank: int, length: int) -> range:
    """The chunks of the aligned block of this length in which a rank's own lies."""
    first = rank // length * length
    return range(first, first + length)


def _by(author: int, chunks: range) -> tuple[Wire, ...]:
    return tuple(Wire(chunk, author) for chunk in chunks)


def _finished(chunks: range) -> tuple[Wire, ...]:
    return tuple(Wire(chunk, chunk) for chunk in chunks)
