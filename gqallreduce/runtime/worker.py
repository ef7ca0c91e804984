"""One rank's arithmetic in one allreduce, without a network: what to send, where to receive, what to do with it.

A lane is a generator. It yields None before a kernel call when the carrier wants to poll, an Expected to be received
into, a Parcel to be sent, or a list of Expected or Receipts of which one must be ready before it goes on. The
carrier of the bytes (engine, local) drives it.

The one rule: what you send is what you keep. A value that was encoded is replaced by what its bytes decode to, here as
at everyone else's, and the difference is owed: all of it by a single holder, a slice of it by each of several.
"""

from __future__ import annotations

import math
from time import perf_counter

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.coding.codec import NOT_FINITE
from gqallreduce.coding.layout import Piece, columns, pieces
from gqallreduce.coding.message import Expected, ForeignFrame, Parcel
from gqallreduce.errors import WireError
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.values import Values, of, part
from gqallreduce.runtime.wires import Wires
from gqallreduce.scheduling.program import DROPPED, RESULT, Arrival, Encoding, Receiving, program
from gqallreduce.scheduling.schedule import Send

LIVE_LEAST = 1 << 18
LIVE_SHARE = 0.75


class Worker:
    """The arithmetic of one rank for one (scheme, shape, order, dtype); used again for every call of its kind.

    lanes_at_once
        how many lanes may be under way, so that their messages stay below 0.75 of the vector in float32 (or 256 KiB).
    poll_at
        when (by time.perf_counter) the carrier wants control back, set by it; never, at first.
    """

    def __init__(self, schedule, codec, rank, size, shape, order, dtype, average, processor, spent):
        self.schedule, self.codec = SCHEDULES[schedule], codec.bind(dtype, size).on(processor.arithmetic)
        self.rank, self.size = rank, size
        self.steps = program(schedule, rank, size)
        grid = self.codec.grid(columns(shape, order))
        self.pieces = pieces(math.prod(shape), self.schedule.chunks(size), grid, self.codec.nbytes_bound)
        everything = [piece for lane in self.pieces for piece in lane]
        self.extents = processor.extents([region for piece in everything for region in piece.regions])
        for piece in everything:
            piece.extents = processor.extents(piece.regions)
        self.widest = max((extent.size for piece in everything for extent in piece.extents), default=0)
        self.short = dtype in ("float16", "bfloat16")
        self.scale = 1.0 / size if average else 1.0
        self.processor, self.arithmetic, self.spent = processor, processor.arithmetic, spent
        self.poll_at = math.inf
        room = max(LIVE_LEAST, LIVE_SHARE * np.dtype(np.float32).itemsize * math.prod(shape))
        self.lanes_at_once = max(1, int(room // max([1, *map(self._most_live, range(self.lanes))])))

    @property
    def lanes(self) -> int:
        return len(self.pieces)

    def _most_live(self, lane: int) -> int:
        """Bytes of a lane's messages: all chunks not taken yet, and its widest round's rooms and joined sends."""
        widest = 0
        for step in self.steps:
            sends = [move for move in step.outgoing if isinstance(move, Send) and len(move.wires) > 1]
            moves = [*sends, *(each.move for each in step.receivings)]
            widest = max(widest, sum(self._bound(lane, move.wires) for move in moves))
        return widest + sum(frame.SIZE + piece.bound for piece in self.pieces[lane])

    def poll_is_due(self) -> bool:
        return perf_counter() >= self.poll_at

    def begin(self, source, target, owed, owing, key64: int, step: int, signature: int) -> None:
        """Start a call: Buffers, residuals (None without feedback), and what tells its frames from others'."""
        self.values = Values(self, source, target, owed, owing)
        self.key64, self.step, self.signature = key64, step & 0xFFFFFFFF, signature
        self.own_stream = _kernels.Stream(key64, 0, self.rank, self.step) if self.codec.lifts else None
        self.wires = Wires(self.processor)

    def measure(self) -> float | None:
        """For codecs that agree, this rank's number: the largest of all ranks must be given to `agreed`; else None."""
        if not self.codec.agrees:
            return None
        began = perf_counter()
        number = self.codec.measure(self.values.own_parts())
        self.spent.encode += perf_counter() - began
        return number

    def agreed(self, largest: float) -> None:
        """Go on with the largest of all ranks' numbers."""
        self.values.codec = self.codec.agreed(largest)

    def end(self) -> None:
        """Give everything borrowed back; also after an error."""
        if self.own_stream is not None:
            self.spent.saturated += self.own_stream.clipped
        self.values.release()
        self.values = self.wires = None

    @property
    def flaw(self) -> tuple[int, int] | None:
        """(rank or frame.NO_RANK, C-order index) of the first value that is not finite, as far as known here."""
        return min(self.values.flaws.values(), default=None)

    def lane(self, lane: int):
        """One lane's part, as a generator (see the head of this file)."""
        for step in self.steps:
            expected = [self._expect(lane, receiving) for receiving in step.receivings]
            yield from expected
            for move in step.outgoing:
                if isinstance(move, Encoding):
                    yield from self._encode(lane, move)
                else:
                    parcel = self.wires.pack(move.to, lane, move.wires, self._bound(lane, move.wires))
                    if parcel.frame.receipt is not None:
                        yield [parcel.frame.receipt]
                    yield parcel
            for move in step.outgoing:
                if isinstance(move, Encoding):
                    yield from self._keep(lane, move)
            due = {item.source: item for item in expected if item.receiving.move.reduce}
            for term in step.terms:  # ascending, whatever the order of arrival
                if term.move.source == self.rank:
                    yield from self._apply_own(lane, term.arrivals[0])
                else:
                    yield [due[term.move.source]]
                    yield from self._unpack(lane, due[term.move.source])
            waiting = [item for item in expected if not item.receiving.move.reduce]
            while waiting:
                yield waiting
                arrived = next(item for item in waiting if item.ready)
                waiting.remove(arrived)
                yield from self._unpack(lane, arrived)
        yield from self.values.finish(lane)
        yield from self.values.settled()

    # --- encoding ---

    def _encode(self, lane: int, encoding: Encoding):
        move, place = encoding.move, (lane, encoding.move.chunk)
        piece = self.pieces[lane][move.chunk]
        made = self.processor.make_frame(piece.bound, encoding.sends + 1)
        flaws = self.values.flaws
        if place not in flaws:
            nbytes = yield from self._encode_extents(place, piece, move, made.payload)
            if place not in flaws:
                header = frame.Header(frame.DATA, self.step, self.signature, 0, move.holders[0], move.hop, lane)
                receipt = self.processor.ship(made, header, nbytes)
                if receipt is not None:
                    yield [receipt]
                    if receipt.flawed:
                        self.values.find_flaws(place, piece)
        if place in flaws:
            rank, index = flaws[place]
            self.processor.mark(
                made, frame.Header(frame.NOT_FINITE, self.step, self.signature, index, rank, move.hop, lane)
            )
        else:
            self.spent.selected += self.codec.entries(made.nbytes - frame.SIZE, piece.regions)
        self.wires[lane, move.chunk, move.holders[0]] = made

    def _encode_extents(self, place, piece: Piece, move, payload):
        """Encode extent after extent; returns bytes written.

        One that is not finite does not end it: the first flaw in C order may lie in a later one.
        """
        values = self.values
        running, lifts = values.running.get(place), values.codec.lifts
        codec = values.codec if running is None else values.codec.sums
        owing = values.owing if len(move.holders) == 1 else None
        selected = None
        if self.codec.selects:
            selected = yield from values.select(piece, running, owing)
        stream = self.own_stream if lifts else _kernels.Stream(self.key64, move.hop, move.holders[0], self.step)
        at = 0
        for number, region in enumerate(piece.extents):
            if self.poll_is_due():
                yield
            began = perf_counter()
            x, owed = values.own(region) if running is None else (part(running, piece, region), None)
            kept = None if selected is None else selected[number]
            nbytes = codec.encode(x, owed, of(owing, region), payload[at:], region, stream, kept)
            if nbytes == NOT_FINITE:
                values.find_flaw(place, region, x, owed, own=running is None)
            else:
                at = at + nbytes if at else nbytes  # a device, which has one extent, may be the only one to know it
            self.spent.encode += perf_counter() - began
        if selected is not None and running is not None:
            selected.release()
        if not lifts:
            self.spent.saturated += stream.clipped
        return at

    def _keep(self, lane: int, encoding: Encoding):
        """What you send is what you keep: decode the own bytes if the value is needed again, and share the error.

        After they are sent: others wait for them.
        """
        move, place = encoding.move, (lane, encoding.move.chunk)
        made = self.wires[lane, move.chunk, move.holders[0]]
        if encoding.kept == DROPPED:
            self.values.drop(place)
        elif place not in self.values.flaws:
            yield from self._keep_decoded(place, encoding, made.wire)
        self.wires.used(made)

    def _keep_decoded(self, place, encoding: Encoding, payload):
        values, holders = self.values, encoding.move.holders
        piece = self.pieces[place[0]][place[1]]
        if encoding.kept == RESULT and len(holders) == 1:
            yield from values.decode_result(place, piece, payload)
            return
        running = values.running[place] if place in values.running else values.new(place, piece)
        if values.owing is None or len(holders) == 1 or values.codec.lifts:
            yield from values.decode(piece, payload, running, add=False)
            return
        begin, stop = piece.share(holders.index(self.rank), len(holders))
        mine = running[begin - piece.start : stop - piece.start]
        lost = values.lend(stop - begin)
        self.arithmetic.copy(lost, mine)
        yield from values.decode(piece, payload, running, add=False)
        self.arithmetic.subtract(lost, mine, lost)
        self.arithmetic.accumulate(lost, values.owing[begin:stop])

    # --- sending and receiving ---

    def _bound(self, lane: int, wires) -> int:
        return sum(frame.SIZE + self.pieces[lane][wire.chunk].bound for wire in wires)

    def sent(self, parcel: Parcel) -> None:
        """The parcel's bytes have left: its buffer may be used again."""
        self.wires.used(parcel.frame)

    def _expect(self, lane: int, receiving: Receiving) -> Expected:
        bound = self._bound(lane, receiving.move.wires)
        return Expected(receiving.move.source, lane, self.processor.make_room(bound), bound, receiving)

    def _unpack(self, lane: int, arrived: Expected):
        """Check and apply a message's frames; keep those that will be passed on."""
        arrivals, at = arrived.receiving.arrivals, 0
        alone = len(arrivals) == 1
        for arrival in arrivals:
            head, receipt = self.processor.head(arrived.room, at, arrived.nbytes)
            yield from self._form(lane, arrival)
            if receipt is not None and not receipt.ready:
                yield [receipt]
            header = self._accept(head, arrived, at, lane, arrival.wire)
            self.processor.give_wire(head)
            nbytes = frame.SIZE + (header.word if header.kind == frame.DATA else 0)
            if arrival.sends:
                self.wires.forward((lane, *arrival.wire), arrived.room, at, nbytes, arrival.sends, alone)
            payload = self.processor.wire(arrived.room, at + frame.SIZE, at + nbytes)
            yield from self._apply(lane, arrival, header, payload)
            self.processor.give_wire(payload)
            at += nbytes
        if not (alone and arrivals[0].sends):
            self.processor.give_room(arrived.room)

    def _apply_own(self, lane: int, arrival: Arrival):
        """Add what this rank's own bytes decode to, in their turn."""
        own = self.wires[(lane, *arrival.wire)]
        yield from self._form(lane, arrival)
        yield from self._apply(lane, arrival, own.header, own.wire)
        self.wires.used(own)

    def _accept(self, head, arrived: Expected, at: int, lane: int, wire) -> frame.Header:
        """The header at `at`; ForeignFrame unless it belongs to this wire of this call."""
        try:
            header = frame.read(head)
        except WireError:
            raise ForeignFrame(arrived.source) from None
        ours = (header.signature, header.step, header.lane) == (self.signature, self.step, lane)
        if header.kind == frame.DATA:
            ours = ours and header.rank == wire.author and at + frame.SIZE + header.word <= arrived.nbytes
        if not ours or header.kind > frame.NOT_FINITE:
            raise ForeignFrame(arrived.source)
        return header

    def _form(self, lane: int, arrival: Arrival):
        """Own values, where a wire is to be added to them."""
        place = lane, arrival.wire.chunk
        if arrival.adds and place not in self.values.running:
            yield from self.values.form(place, self.pieces[lane][arrival.wire.chunk])

    def _apply(self, lane: int, arrival: Arrival, header, payload):
        place = lane, arrival.wire.chunk
        values, piece = self.values, self.pieces[lane][arrival.wire.chunk]
        if header.kind == frame.NOT_FINITE:
            values.flawed(place, (header.rank, header.word))
        if place in values.flaws:
            return
        if arrival.kept == RESULT:
            yield from values.decode_result(place, piece, payload)
        else:
            running = values.running[place] if place in values.running else values.new(place, piece)
            yield from values.decode(piece, payload, running, arrival.adds)
