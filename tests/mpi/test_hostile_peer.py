"""A rank whose frames lie: the others get an error or a finite sum, and nothing is written outside their buffers.

The last rank takes part by the interpreter in Python, and changes what it sends; the others run as they usually do.
"""

import struct

import numpy as np
import pytest
from ranks import guarded, inputs, pairs, works

import gqallreduce as gq
from gqallreduce.coding import frame
from gqallreduce.runtime import interpreter
from gqallreduce.transport import exchange

pytestmark = pytest.mark.mpi(min_size=2)
SIZE, TIMEOUT = 3000, 3
HUGE = (2**16, 2**31 - 1, 2**32, 2**63, 2**64 - 1)


# Each lie that is noticed leaves a communicator of the MPI behind, of which MPICH has 2048 in a session.
SOME = pytest.mark.parametrize("scheme", pairs(True, False)[::6])
MORE = pytest.mark.parametrize("scheme", pairs(True, False)[::3])


def patched(layout, at, value):
    def lie(message, _):
        struct.pack_into(layout, message, at, value)
        return message

    return lie


def added(layout, at, value):
    def lie(message, _):
        (found,) = struct.unpack_from(layout, message, at)
        struct.pack_into(layout, message, at, (found + value) % 2 ** (8 * struct.calcsize(layout)))
        return message

    return lie


def payload(change):
    def lie(message, random):
        values = np.frombuffer(message, np.uint8)[frame.SIZE :]
        values[:] = change(values, random)
        return message

    return lie


def one_bit(values, random):
    found = values.copy()
    if found.size:
        found[random.integers(min(64, found.size))] ^= 1 << random.integers(8)
    return found


HEADERS = {
    "magic": patched("<H", 0, 0),
    "version": added("<B", 2, 1),
    **{f"kind {kind}": patched("<B", 3, kind) for kind in (*range(2, 8), 255)},
    "step": added("<I", 4, 1),
    "signature": added("<Q", 8, 1),
    "longer": added("<Q", 16, 1),
    "shorter": added("<Q", 16, 2**64 - 1),
    **{f"length {length}": patched("<Q", 16, length) for length in (0, *HUGE)},
    "author": added("<I", 24, 1),
    "lane": added("<B", 30, 1),
    "last byte": patched("<B", 31, 1),
    "cut in the header": lambda message, _: message[: frame.SIZE // 2],
    "cut behind it": lambda message, _: message[: frame.SIZE + (len(message) - frame.SIZE) // 2],
    "no byte": lambda message, _: message[:0],
}
NOT_FINITE = {
    f"not finite, index {index}, rank {rank}": (
        lambda message, _, index=index, rank=rank: bytearray(
            message[:3] + struct.pack("<BIQQI", 1, *struct.unpack_from("<IQ", message, 4), index, rank) + message[28:32]
        )
    )
    for index in (0, SIZE, 2**32, 2**64 - 1)
    for rank in (0, 2**31, frame.NO_RANK)
}
PAYLOADS = {
    "zeros": payload(lambda values, _: 0),
    "ones": payload(lambda values, _: 255),
    **{f"random {number}": payload(lambda values, random: random.integers(0, 256, values.size)) for number in range(3)},
    **{f"one bit {number}": payload(one_bit) for number in range(5)},
}


def lying(comm, monkeypatch, lie, scheme, sender=interpreter, only=None, **options):
    """What a call of a new object comes to on this rank, where the last one lies: None, or its error.

    only: the rank that it lies to; None: to all.
    """
    with monkeypatch.context() as patch:
        lies = comm.rank == comm.size - 1
        if lies:
            patch.setenv("GQALLREDUCE_RUNTIME", "python")
        allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)
        if lies:
            random, outgoing = np.random.default_rng(5), sender.Outgoing

            def changed(to, data, bound, made=None):
                if only in (None, to):
                    data = np.frombuffer(lie(bytearray(data), random), np.uint8).copy()
                return outgoing(to, data, bound, made)

            patch.setattr(sender, "Outgoing", changed)
        return guarded(allreduce, inputs(comm.size, SIZE)[comm.rank])


@SOME
def test_headers_that_lie(comm, monkeypatch, scheme):
    """The ranks that receive the lie say what it is; the others get an error by their abort."""
    for name, lie in HEADERS.items():
        found = comm.allgather(lying(comm, monkeypatch, lie, scheme))[:-1]
        assert all(isinstance(error, gq.Error) for error in found), (name, found)
        assert any(isinstance(error, (gq.MismatchError, gq.WireError)) for error in found), (name, found)
    works(comm, gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT))


@SOME
def test_values_that_are_told_not_to_be_finite(comm, monkeypatch, scheme):
    """Whatever place and rank they name."""
    for name, lie in NOT_FINITE.items():
        found = comm.allgather(lying(comm, monkeypatch, lie, scheme))[:-1]
        assert all(isinstance(error, gq.Error) for error in found), (name, found)
    works(comm, gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT))


@MORE
def test_bytes_that_lie(comm, monkeypatch, scheme):
    """Some are lawful, and make another sum: then it is finite."""
    for lie in PAYLOADS.values():
        lying(comm, monkeypatch, lie, scheme)
    works(comm, gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT))


def one_value(values, _):
    """The highest bit of the mantissa of a float32, or a sign."""
    found = values.copy()
    found[2] ^= 0x40
    return found


@pytest.mark.parametrize("scheme", ["direct/raw", "ring/raw", "allgather/raw", "direct/onebit/ef", "ring/onebit"])
def test_valid_bytes_that_lie_to_one_rank_alone_are_found_by_verify(comm, monkeypatch, scheme):
    """Nothing else notices them: ranks go on with different sums."""
    found = comm.allgather(lying(comm, monkeypatch, payload(one_value), scheme, only=0))
    assert found == [None] * comm.size
    found = comm.allgather(lying(comm, monkeypatch, payload(one_value), scheme, only=0, verify=1))
    assert {type(error) for error in found} == {gq.ReplicaError}, found
    works(comm, gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, verify=1))


EXCHANGES = {
    "random": lambda message, random: bytearray(random.integers(0, 256, len(message), np.uint8).tobytes()),
    "ones": lambda message, _: bytearray(b"\xff" * len(message)),
    "zeros": lambda message, _: bytearray(len(message)),
    "cut": lambda message, _: message[: len(message) // 2],
    "no byte": lambda message, _: message[:0],
    "rank 0's word": lambda message, _: message[:8] + b"\xff" * 8 + message[16:],
}


@pytest.mark.parametrize("auto", ["measure", "model"])
@pytest.mark.parametrize(
    "scheme", ["auto/qsgd/ef", "direct/terngrad", "direct/thc", "direct/alq/ef", "direct/powersgd/ef"]
)
@pytest.mark.parametrize("name", EXCHANGES)
def test_exchanges_that_lie(comm, monkeypatch, auto, scheme, name):
    """Those by which ranks agree on a call, a scale or levels."""
    monkeypatch.setenv("GQALLREDUCE_AUTO", auto)
    lying(comm, monkeypatch, EXCHANGES[name], scheme, exchange)
    works(comm, gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT))
