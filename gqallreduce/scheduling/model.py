"""What an allreduce costs, in the alpha-beta-gamma model, and what follows from it: the fixed rule and `auto/`.

The time of a schedule is that of its rounds (alpha each), its messages (software), its bytes (beta) and its codec's
passes over the vector (gamma). Transfer and arithmetic overlap, between lanes and between the messages of a round: the
time is the longer of the two, plus the part of the shorter that belongs to one message of one lane, plus 1 - overlap of
its other parts, where `overlap` is the profile's. The ranks of a host share its link; what they send to each other goes
through memory, twice.

`ranks` is their number, each on a host of its own, or a Topology.

Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; differs: a term per message, without which a model prefers
`direct` at P = 1024, and the codec's.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from gqallreduce.coding import frame
from gqallreduce.coding.codec import Codec
from gqallreduce.coding.lanes import LANES_MOST, lane_count
from gqallreduce.coding.layout import Form, Grid, Region
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.scheduling.counts import Sent
from gqallreduce.scheduling.profile import Profile as Profile
from gqallreduce.scheduling.topology import Topology
from gqallreduce.scheduling.work import topology_of, work

FEW_BYTES = 4 << 10  # of one encoding: rounds count
FEW_RANKS, SOME_RANKS = 8, 16  # so many messages at once cost little, where they are short; or where they are longer
LONG_MESSAGE = 4 << 10
NEAR_PASSES = 2.0  # copies of a message between two ranks of a host


def known(topology: Topology) -> list[str]:
    """Schedules that differ there: those by hosts only where ranks share them."""
    return [name for name in SCHEDULES if topology.shares_hosts or not SCHEDULES[name].by_hosts]


class Summed(NamedTuple):
    """A vector that is summed."""

    codec: Codec
    elements: int
    dtype: str

    def message_bytes(self, contributions: int = 1, total: int = 0) -> int:
        return _message_bytes(*self, contributions, total)


def summed(codec, size: int, what: int | tuple[Form, ...], dtype: str = "float32") -> list[Summed]:
    """What a call sums, one after the other: the buffers as one vector, or other vectors if the codec is indirect.

    what
        the forms of the buffers; or so many elements, of a vector, or of a matrix that is nearly square.
    """
    if not codec.indirect:
        elements = what if isinstance(what, int) else sum(form.size for form in what)
        return [Summed(codec, elements, dtype if isinstance(what, int) else what[0].dtype)]
    forms = what if isinstance(what, tuple) else (_nearly_square(what, dtype),)
    found = Counter()
    for form in forms:
        for turn, (each, elements) in enumerate(codec.bind(form, size).summed):
            found[turn, each] += elements
    return [Summed(each, elements, "float32") for (_, each), elements in found.items()]


def _nearly_square(elements: int, dtype: str) -> Form:
    columns = 1 << math.isqrt(elements).bit_length()
    return Form((elements // columns, columns), "C", dtype) if elements >= columns else Form((elements,), "C", dtype)


def fixed_schedule(size: int, codec, what: int | tuple[Form, ...], dtype: str = "float32") -> str:
    """The schedule of a scheme that names none: a function of P, bytes and codec, alike on every machine.

    Two ranks: recursive doubling (one round, one encoding per contribution). Few bytes: that too (few rounds), or with
    few ranks all to all. Else direct (two encodings per contribution, whatever P), unless its messages are many and
    short: then halving and doubling.
    """
    if size <= 2:
        return "direct" if size == 1 else "recursive_doubling"
    nbytes = message_bytes(codec, what, dtype)
    if nbytes <= FEW_BYTES:
        return "allgather" if size <= FEW_RANKS else "recursive_doubling"
    return "direct" if size <= SOME_RANKS or nbytes >= LONG_MESSAGE * size else "halving_doubling"


def message_bytes(codec, what: int | tuple[Form, ...], dtype: str = "float32") -> int:
    """Bytes of one encoding of all that a call sums."""
    return sum(each.message_bytes() for each in summed(codec, 1, what, dtype))


def _message_bytes(codec, elements: int, dtype: str, contributions: int, total: int) -> int:
    """Bytes of the encoding of so many elements, of so many ranks' values summed, taken as columns of 4096.

    total
        of the vector, if they are not all.
    """
    bound = codec.bind(Form((elements,), "C", dtype), contributions)
    return bound.nbytes_usual([Region(0, elements, bound.grid(Grid(4096)), max(elements, total))])


def _lanes(schedule: str, vector: Summed, topology: Topology) -> int:
    codec, elements, dtype = vector
    bound, schedule = codec.bind(Form((elements,), "C", dtype), topology.size), SCHEDULES[schedule]
    sizes = bound.nbytes_in_lanes, bound.nbytes_bound, schedule.held(topology)
    return lane_count(elements, schedule.chunks(topology), bound.grid(Grid(4096)), *sizes)


def bytes_sent(
    schedule: str, codec, ranks: int | Topology, what: int | tuple[Form, ...], dtype: str = "float32"
) -> float:
    """Bytes that a rank sends at most, headers included: with many ranks those of small pieces outweigh the values."""
    topology = topology_of(ranks)
    done, found = work(schedule, topology), _bytes_gathered(codec, topology.size, what)
    for vector in summed(codec, topology.size, what, dtype):
        found += sum(_bytes(schedule, vector, topology, done.sent))
    return found


def _bytes_gathered(codec, size: int, what: int | tuple[Form, ...]) -> float:
    """Bytes that a rank sends, and gets, of the messages that all ranks get."""
    if not codec.indirect or isinstance(what, int):
        return 0
    found = sum(codec.bind(form, size).gathered for form in what)
    return (size - 1) * (frame.SIZE + found) if found else 0


def _bytes(schedule: str, vector: Summed, topology: Topology, sent: dict[Sent, float]) -> tuple[float, float]:
    """Of what is sent: (to other hosts, to ranks of the same host)."""
    chunks = SCHEDULES[schedule].chunks(topology)
    lanes = _lanes(schedule, vector, topology)
    piece = vector._replace(elements=-(-vector.elements // (chunks * lanes)))
    bound = vector.codec.bind(Form((vector.elements,), "C", vector.dtype), 1)
    wires, lossless, itemsize = Counter(), bound.of_sums.exact, bound.working.itemsize
    for (contributions, exact, near), lengths in sent.items():
        # all one where sums take no more bytes than own values
        sums = contributions if vector.codec.sums_grow else 1
        wires[sums, exact and not lossless, near] += lengths * chunks * lanes
    found = [0.0, 0.0]
    for (sums, exact, near), count in wires.items():
        nbytes = itemsize * piece.elements if exact else piece.message_bytes(sums, vector.elements)
        found[near] += count * (frame.SIZE + nbytes)
    return found[0], found[1]


def _adds_exactly(vector: Summed) -> bool:
    """Does the codec send sums without loss, so that it encodes what else would be sent as float32?"""
    return vector.codec.bind(Form((vector.elements,), "C", vector.dtype), 1).of_sums.exact


def predict(
    schedule: str, codec, ranks: int | Topology, what: int | tuple[Form, ...], profile: Profile, dtype: str = "float32"
) -> float:
    """Seconds of one allreduce of so many values, or of these buffers."""
    topology = topology_of(ranks)
    vectors = summed(codec, topology.size, what, dtype)
    found = sum(_predict(schedule, vector, topology, profile) for vector in vectors)
    if codec.indirect:  # passes over the buffers
        elements = what if isinstance(what, int) else sum(form.size for form in what)
        found += 4 * elements * sum(map(profile.a_pass, _rates(profile, codec)))
        found += profile.beta * _bytes_gathered(codec, topology.size, what)
    return found


class Costs(NamedTuple):
    """Of an allreduce.

    latency
        seconds of its rounds, its messages and the call itself.
    wire, arithmetic
        seconds of transfer between hosts; of the codec, and of copies within a host.
    parts
        messages of a round times lanes: all but one of them can overlap.
    """

    latency: float
    wire: float
    arithmetic: float
    parts: int

    def seconds(self, overlap: float) -> float:
        """If this share of the possible overlap, from 0 to 1, is reached."""
        shorter, longer = sorted((self.wire, self.arithmetic))
        return self.latency + longer + shorter * (1 - overlap * (1 - 1 / self.parts))

    def overlap(self, seconds: float) -> float:
        """The share of the possible overlap, 0 to 1, that a call of so many seconds reached; 1 where there is none."""
        shorter, longer = sorted((self.wire, self.arithmetic))
        could = shorter * (1 - 1 / self.parts)
        return min(1.0, max(0.0, (self.latency + longer + shorter - seconds) / could)) if could else 1.0


def _predict(schedule: str, vector: Summed, topology: Topology, profile: Profile) -> float:
    return costs(schedule, vector, topology, profile).seconds(profile.overlap)


def costs(schedule: str, vector: Summed, topology: Topology, profile: Profile) -> Costs:
    """What the allreduce of one vector costs."""
    done = work(schedule, topology)
    lanes = _lanes(schedule, vector, topology)
    wire = profile.beta * _bytes(schedule, vector, topology, done.leaving)[0]
    near = _bytes(schedule, vector, topology, done.sent)[1]
    coded = _rates(profile, vector.codec)
    plain = coded if _adds_exactly(vector) else _rates(profile, CODECS["raw"]())
    passes = 0.0
    for kind, rates in enumerate((coded, plain)):
        passes += profile.a_pass(rates[0]) * done.encoded[kind] + profile.a_pass(rates[1]) * done.decoded[kind]
    arithmetic = 4 * vector.elements * passes + near * (profile.near or NEAR_PASSES * profile.a_pass())
    near_rounds = done.rounds - done.far_rounds
    latency = profile.call + profile.alpha * done.far_rounds + profile.software * (done.messages * lanes + near_rounds)
    parts = (lanes if lanes <= LANES_MOST else 1) * max(1, done.messages // done.rounds)
    return Costs(latency, wire, arithmetic, parts)


def _rates(profile: Profile, codec) -> tuple[float, float]:
    return profile.rates.get(codec.name, (4.0, 2.0))


def predict_dense(ranks: int | Topology, nbytes: int, profile: Profile) -> float:
    """Seconds of MPI_Allreduce as the profile has it, else of a good one: the best of a ring, recursive doubling, and
    halving and doubling."""
    if profile.dense:
        return profile.dense_seconds(nbytes)
    topology = topology_of(ranks)
    size, log = topology.size, math.ceil(math.log2(topology.size))
    add = nbytes * profile.a_pass()
    if size == 1:
        return add
    alpha, beta = profile.alpha, profile.beta
    if len(topology.groups) == 1:
        alpha, beta = profile.software, profile.near or NEAR_PASSES * profile.a_pass()
    halves = 2 * nbytes * (size - 1) / size * beta + add
    doubling = log * (alpha + nbytes * beta + add)
    return min(2 * min(size - 1, log) * alpha + halves, doubling)


DENSE, RAW = "dense", "/raw"  # a schedule with RAW behind it sums exactly
SCHEDULES_TRIED = 3


def choose(
    codec, ranks: int | Topology, what: int | tuple[Form, ...], profile: Profile, dtype: str = "float32"
) -> tuple[str, str]:
    """For `auto/`: ("dense", a schedule, or one that sums exactly as "ring/raw", why). The best predicted time."""
    topology = topology_of(ranks)
    if topology.size == 1:
        return fixed_schedule(1, codec, what) + RAW, "one rank: nothing to choose"
    times = _times(codec, topology, what, profile, dtype)
    shown = ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in times.items())
    return next(iter(times)), f"predicted for {profile.source}: {shown}"


def candidates(codec, ranks: int | Topology, what: int | tuple[Form, ...], profile: Profile) -> list[str]:
    """For `auto/` that measures: two exact sums and some schedules, by predicted time, the best first. Of several hosts
    with several ranks each also the best schedule by hosts: messages within a host cost what no profile tells well."""
    topology = topology_of(ranks)
    times = _times(codec, topology, what, profile)
    schedules = [name for name in times if name in SCHEDULES]
    by_hosts = [name for name in schedules if SCHEDULES[name].by_hosts and len(topology.groups) > 1]
    schedules = [*schedules[:SCHEDULES_TRIED], *by_hosts[:1]]
    return [name for name in times if is_exact(name) or name in schedules]


def is_exact(choice: str) -> bool:
    """Does it lose nothing, whatever the codec?"""
    return choice == DENSE or choice.endswith(RAW)


def best_exact(ranks: int | Topology, what: int | tuple[Form, ...], profile: Profile, dtype: str = "float32") -> str:
    """The schedule of ours that is predicted to sum exactly in the least time, as a choice."""
    topology, raw = topology_of(ranks), CODECS["raw"]()
    return min((predict(name, raw, topology, what, profile, dtype), name) for name in known(topology))[1] + RAW


def _times(codec, topology: Topology, what: int | tuple[Form, ...], profile: Profile, dtype: str = "float32") -> dict:
    """Of all that `auto/` can choose the predicted seconds, the best first."""
    raw = CODECS["raw"]()
    times = {DENSE: predict_dense(topology, message_bytes(raw, what, dtype), profile)}
    if topology.size > 1:
        times |= {name: predict(name, codec, topology, what, profile, dtype) for name in known(topology)}
        if codec != raw:
            best = best_exact(topology, what, profile, dtype)
            times[best] = predict(best.removesuffix(RAW), raw, topology, what, profile, dtype)
    return dict(sorted(times.items(), key=lambda item: (item[1], item[0])))
