"""The runtime in C++: programs, operations on them, and the engine that advances them without the GIL."""

import os
import signal

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_STRIDES, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp cimport bool as c_bool
from libcpp.utility cimport pair
from libcpp.vector cimport vector


cdef class Pool:
    """Memory for messages and running values, which is used again.

    nbytes
        what all calls so far have needed of it at most: it is kept.
    """

    cdef CPool data

    @property
    def nbytes(self) -> int:
        return self.data.nbytes()


cdef class Program:
    """What a Plan says, as the runtime reads it; built step by step, then never changed.

    rank, size, slots, lanes_at_once, messages, longest, widest, scale
        as a Plan has them; `slots` is the number of slots of its instructions.
    exact
        the Coder of what is encoded without loss.
    """

    cdef CProgram data
    cdef COperation* resting  # of a call that is done, for the next one; or NULL
    cdef vector[CTensor] tensors  # but for where a call has their values
    cdef list coders
    cdef Coder exact

    def __cinit__(self, int rank, int size, int slots, int lanes_at_once, int messages, size_t longest, size_t widest,
                  double scale, Coder exact not None):
        self.data.rank, self.data.size, self.data.slots = rank, size, slots
        self.data.lanes_at_once, self.data.messages = lanes_at_once, messages
        self.data.longest, self.data.widest = longest, widest
        self.data.scale = scale
        self.coders, self.exact = [], exact
        self.data.exact = &exact.data

    def __dealloc__(self):
        del self.resting

    cdef COperation* operation(self, CPool& pool) except NULL:
        """One that rests, or a new one."""
        cdef COperation* found = self.resting
        if found != NULL and &found.pool == &pool:
            self.resting = NULL
            return found
        if self.data.lanes.empty():
            raise ValueError("got a program without lanes")
        return new COperation(self.data, pool)

    cdef void take_back(self, COperation* operation) noexcept:
        """Of a call that is over. One that has ended by an error may have parts of messages left to send."""
        if operation == NULL or not operation.done or self.resting != NULL:
            del operation
            return
        operation.rest()
        self.resting = operation

    def add_tensor(self, Coder coder, size_t size, int source, int target, bint wide, bint loses, bint narrow):
        """coder: None if each call brings one. source, target: formats as kernels number them, 3 for float32. wide: are
        values worked on as float64? Does the codec lose anything? Has the target 16 bits?
        """
        cdef CTensor made
        made.size = size
        made.coder = &coder.data if coder is not None else NULL
        made.source.format, made.target.format = source, target
        made.source.wide = made.target.wide = wide
        made.loses, made.narrow = loses, narrow
        self.coders.append(coder)
        self.tensors.push_back(made)

    def add_instruction(self, int op, *, int slot=-1, int chunk=-1, int peer=-1, int part=0, int hop=0, int author=0,
                        int index=0, int of=1, int target=0, bint own=False, bint alone=False, bint adds=False,
                        bint result=False, bint exact=False, bint clears=False, bint in_residual=False, int exposes=0,
                        bint forwarded=False, wires=(), parts=(), choices=()):
        """The next instruction; `op` is its place in the list of Op, `exposes` a value of runtime/exposing.py."""
        cdef CInstruction made
        made.op = <Op> op
        made.slot, made.chunk, made.peer, made.part, made.hop, made.author = slot, chunk, peer, part, hop, author
        made.index, made.of, made.target = index, of, target
        made.own, made.alone, made.adds, made.result, made.exact = own, alone, adds, result, exact
        made.clears, made.in_residual = clears, in_residual
        made.exposes, made.forwarded = <Exposes> exposes, forwarded
        # Parts of a Join lie at the same places as its wires.
        made.first, made.count = self.data.wires.size(), len(wires)
        if choices:
            made.first, made.count = self.data.choices.size(), len(choices)
        for chunk_of_wire, author_of_wire, exact_wire in wires:
            self.data.wires.push_back(CWire(chunk_of_wire, author_of_wire, exact_wire))
        self.data.parts.resize(self.data.wires.size())
        cdef size_t at = made.first
        for slot_of_part, number in parts:
            self.data.parts[at] = CPart(slot_of_part, number)
            at += 1
        for slot_of_choice, target_of_choice in choices:
            self.data.choices.push_back(CChoice(slot_of_choice, target_of_choice))
        self.data.instructions.push_back(made)

    def add_lane(self):
        """The chunks that are added from now on are those of another lane."""
        self.data.lanes.resize(self.data.lanes.size() + 1)

    def add_chunk(self, size_t bound, size_t exact_bound, int holder, int of):
        """bounds: bytes of its payload at most, by the codec and without loss. The error of its result is held by so
        many ranks, of which this one is the holder-th, or none if that is -1."""
        cdef CChunk made
        made.bound, made.exact_bound = bound, exact_bound
        self.data.lanes.back().push_back(made)
        if self.data.lanes.size() == 1:
            self.data.error_holders.push_back(pair[int, int](holder, of))

    def add_piece(self, int tensor, size_t size, parts):
        """Of the last chunk; parts: (tensor, start, stop, at), `at` in the piece. tensor: -1 for a batch."""
        cdef CPiece made
        made.tensor, made.size = tensor, size
        for tensor_of_part, start, stop, at in parts:
            made.parts.push_back(CStretch(tensor_of_part, start, stop, at))
        self.data.lanes.back().back().pieces.push_back(made)

    def add_extent(self, Regions regions not None, int tensor, size_t start, size_t total, int piece, size_t at,
                   bint streams):
        """Of the last chunk; total: elements of the tensor."""
        cdef CExtent made
        made.regions = regions.rows_
        made.tensor, made.start, made.size, made.piece, made.at = tensor, start, regions.size, piece, at
        made.total, made.streams = total, streams
        self.data.lanes.back().back().extents.push_back(made)


cdef int look_at(memory, CArray* found) except -1:
    """Where a vector, or rows with gaps between them, are."""
    cdef Py_buffer view
    PyObject_GetBuffer(memory, &view, PyBUF_STRIDES)
    found.data = <uint8_t*> view.buf
    if view.ndim == 2:
        found.run, found.stride = view.shape[1], view.strides[0] // view.itemsize
    ndim = view.ndim
    PyBuffer_Release(&view)
    if ndim not in (1, 2):
        raise ValueError(f"axes of memory: got {ndim}, expected 1 or 2")
    return 0


cdef int read(vector[CTensor]& made, operands) except -1:
    """Where the tensors of a call are, from an Operand of each."""
    cdef CTensor* tensor = made.data()
    for source, target, before, after, step, key, *_ in operands:
        look_at(source.memory, &tensor.source)
        if target is source:
            tensor.target = tensor.source
        else:
            look_at(target.memory, &tensor.target)
        tensor.residual = floats_of(before) if before is not None else NULL
        tensor.new_residual = floats_of(after) if after is not None else NULL
        set_stream(tensor, step, key)
        tensor += 1
    return 0


cdef int read_known(vector[CTensor]& made, Arrays arrays, Arrays into, states, const uint64_t* streams) except -1:
    """The same from arrays that are summed, into others or (None) in place; the States after the call, by key; and
    what random streams are made of, of as many."""
    cdef CTensor* tensor = made.data()
    cdef size_t number
    require("states", len(states), made.size())
    for number in range(made.size()):
        tensor[number].source.data = arrays.data[number]
        tensor[number].target.data = arrays.data[number] if into is None else into.data[number]
    if isinstance(states, GroupStates):
        read_group(tensor, states, streams)
        return 0
    cdef State state
    number = 0
    for state in states.values():
        tensor[number].residual, tensor[number].new_residual = state.spare_at, state.residual_at
        set_stream(tensor + number, state.step - 1, streams[number])
        number += 1
    return 0


cdef int read_group(CTensor* tensor, GroupStates states, const uint64_t* streams) except -1:
    cdef size_t number
    for number in range(states.steps.size()):
        if states.residuals is not None:
            tensor[number].residual, tensor[number].new_residual = states.spares.at[number], states.residuals.at[number]
        set_stream(tensor + number, states.steps[number] - 1, streams[number])
    return 0


cdef int set_stream(CTensor* tensor, uint64_t step, uint64_t key) except -1:
    tensor.key0, tensor.key1, tensor.step = <uint32_t> key, <uint32_t> (key >> 32), <uint32_t> step
    return 0


cpdef uint64_t marked(uint64_t signature, uint64_t number, uint64_t mark) noexcept:
    """What is in the headers when the vector of this number has this mark as well, 0 for none.

    Messages of ranks with other marks are refused. The order of vectors does not matter.
    """
    return signature + mixed(number, mark) if mark else signature


cpdef uint64_t mixed(uint64_t first, uint64_t second) noexcept:
    """64 bits that follow from both: the finalizer of SplitMix64 of the first, then of that with the second."""
    return finalized(finalized(first) ^ second)


cdef uint64_t finalized(uint64_t word) noexcept:
    word += <uint64_t> 0x9e3779b97f4a7c15
    word = (word ^ word >> 30) * <uint64_t> 0xbf58476d1ce4e5b9
    word = (word ^ word >> 27) * <uint64_t> 0x94d049bb133111eb
    return word ^ word >> 31


@cython.no_gc_clear  # its memory goes back to the pool, so that must live as long
cdef class NativeOperation:
    """One call on a Program."""

    cdef COperation* data
    cdef readonly Program program
    cdef Pool pool
    cdef list held

    def __init__(self, Program program not None, Pool pool not None, operands, uint64_t signature, uint32_t step,
                 list coders=None, bint selects=False):
        """operands: an Operand (runtime/operand.py) of each tensor, or the Operands; coders: those of this call, None
        for the Program's; selects: does it choose what is encoded of own values, or is that told by `keep`?
        """
        cdef const uint64_t[::1] streams
        cdef size_t count = program.tensors.size()
        if self.data != NULL:
            raise ValueError("made already")
        if not count or count != <size_t> len(operands):
            raise ValueError(f"got {len(operands)} operands, expected {count}, and at least a tensor")
        self._make(program, pool, [operands, coders])
        arrays = getattr(operands, "arrays", None)
        if arrays is not None:
            streams = operands.streams
            require("streams", streams.shape[0], count)
            read_known(self.data.tensors, arrays, operands.into, operands.states, &streams[0])
        else:
            read(self.data.tensors, operands)
        self._begin(signature, step, selects, coders)

    @staticmethod
    cdef NativeOperation of_known(KnownCall known, Arrays arrays, Arrays into, states, uint64_t signature, list coders):
        """One more call like that before; coders: those of this call, None for the Program's."""
        cdef NativeOperation found = NativeOperation.__new__(NativeOperation)
        found._make(known.program, known.pool, [arrays, into, states, coders])
        read_known(found.data.tensors, arrays, into, states, known.streams.data())
        found._begin(signature, <uint32_t> steps_before(states), known.selects, coders)
        return found

    cdef int _make(self, Program program, Pool pool, list held) except -1:
        self.program, self.pool, self.held = program, pool, held
        self.data = program.operation(pool.data)
        self.data.tensors = program.tensors
        return 0

    cdef int _begin(self, uint64_t signature, uint32_t step, bint selects, list coders) except -1:
        """Of what its tensors are now."""
        cdef Py_ssize_t number
        if coders is not None:
            for number in range(len(coders)):
                self.data.tensors[number].coder = &(<Coder?> coders[number]).data
        self.data.begin(signature, step)
        if selects:
            self.data.select_own()
        return 0

    def __dealloc__(self):
        if self.program is not None:
            self.program.take_back(self.data)

    longest = 0  # its messages are cut into parts where they must be

    @property
    def done(self):
        return self.data.done

    def exchange_of_headers(self, uint64_t signature):
        """The NativeExchange by which all ranks tell each other, in a header alone, that they have found no flaw."""
        cdef int rank = self.program.data.rank, size = self.program.data.size
        cdef CHeader header
        rows = np.zeros((size, HEADER_SIZE), np.uint8)
        cdef uint8_t[:, ::1] memory = rows
        header.kind, header.word, header.hop, header.lane = 0, 0, 0, 0
        header.step, header.signature, header.rank = self.data.step, signature, rank
        header.write(&memory[0, 0])
        return NativeRounds(rank, size, rows, True)

    @property
    def first_flaw(self):
        """(rank, number) of the least flaw of any place, or None."""
        cdef CFlaw found = self.data.first_flaw()
        return (found.rank, found.number) if found.known else None

    cdef int take_coder(self, Coder coder) except -1:
        """Of all tensors, from now on."""
        cdef size_t number
        for number in range(self.data.tensors.size()):
            self.data.tensors[number].coder = &coder.data
        self.held.append(coder)
        return 0

    def keep(self, int lane, int chunk, kept):
        """What of each extent of own values is encoded: (index, value, counts, finite) as the kernels have them."""
        cdef const uint32_t[::1] index
        cdef const float[::1] value
        cdef const int64_t[::1] counts
        cdef vector[CKept]* found = &self.data.own_kept[self.data.place(lane, chunk)]
        self.held.append(kept)
        for index, value, counts, finite in kept:
            found.push_back(CKept(places_in(index), in_of(value), &counts[0], index.shape[0], finite))

    def note(self, int lane, int chunk, uint32_t rank, uint64_t number):
        """A value that is not finite."""
        self.data.flaw(lane, chunk).note(rank, number)

    def give_up(self):
        """No lane of it goes on: what it was given is not needed any more, only the memory of its messages."""
        self.held = None

    def trace(self):
        """Note from now on what its lanes do, and when."""
        self.data.traced = True

    @property
    def spans(self):
        """(0 instruction, 1 wait, 2 send, 3 selection; the instruction's place in the list of Op; began, ended; lane,
        chunk, peer, bytes), of what was noted."""
        return [(<int> span.kind, <int> span.op, span.began, span.ended, span.lane, span.chunk, span.peer, span.nbytes)
                for span in self.data.spans]

    cpdef run_alone(self, double seconds):
        """On a single rank: for about so many seconds at most, or up to an Event, which is returned."""
        cdef CEvent event
        with nogil:
            c_run_alone(self.data[0], seconds, event)
        return None if event.kind == Kind.kNone else event_of(event, self)


WORDS, NUMBERS = np.dtype(np.uint64), np.dtype(np.float64)


cdef class NativeExchange:
    """What ranks exchange in an array's memory; made as one of its subclasses, then started by an Engine.

    values
        the array, C-contiguous and writable.
    """

    cdef CExchange* data
    cdef readonly object values

    def __dealloc__(self):
        del self.data

    @property
    def longest(self):
        """Bytes of the longest message, which cannot be cut into parts."""
        return self.data.longest()

    @property
    def done(self):
        return self.data.done()

    def give_up(self):
        """It does not go on; its memory is that of its messages."""

    def count(self, Spent spent not None):
        """Add what it has cost."""
        spent.messages += self.data.messages
        spent.bytes_sent += self.data.bytes_sent
        spent.bytes_received += self.data.bytes_received


cdef uint8_t* writable_bytes(values, size_t* nbytes) except NULL:
    """Of a C-contiguous array."""
    cdef Py_buffer view
    PyObject_GetBuffer(values, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
    cdef uint8_t* begin = <uint8_t*> view.buf
    nbytes[0] = view.len
    PyBuffer_Release(&view)
    return begin


cdef class NativeRounds(NativeExchange):
    """A small exchange (transport/exchange.py).

    values
        this rank's, which become the largest of all ranks (uint64 or float64), or with `gather` a row of each rank, of
        which the first is this rank's and row i becomes that of rank - i.
    """

    def __cinit__(self, int rank, int size, values not None, bint gather):
        cdef size_t nbytes = 0
        dtype = values.dtype
        if gather and len(values) != size or not gather and dtype not in (WORDS, NUMBERS):
            raise ValueError(f"values: got {len(values)} of {dtype}, expected {size} rows, or uint64 or float64")
        cdef uint8_t* begin = writable_bytes(values, &nbytes)
        cdef int kind = 2 if gather else dtype == NUMBERS
        self.values = values
        self.data = new CRounds(<RoundsKind> kind, rank, size, begin, nbytes // size if gather else nbytes)


cdef class NativeSum(NativeExchange):
    """MPI's own sum of a vector over all ranks, in place.

    datatype, most
        the handle of MPI's type for its values; how many of them are summed at one time.
    """

    def __cinit__(self, values not None, Handle datatype, size_t most):
        cdef size_t nbytes = 0, itemsize = values.dtype.itemsize
        if not most:
            raise ValueError("most: got 0, expected 1 or more")
        cdef uint8_t* begin = writable_bytes(values, &nbytes)
        self.values = values
        self.data = new CMpiSum(begin, nbytes // itemsize, itemsize, datatype, most)


EVENTS = ("own flaw", "begun flaw", "sum flaw", "finish flaw", "result flaw", "foreign", "malformed", "post", "poll",
          "out of memory", "large sum", "read flaw")


cdef class Event:
    """What the runtime tells its caller, who decides. Valid until the runtime goes on.

    kind
        one of EVENTS.
    operation
        whose it is, None if of no one in particular.
    lane, chunk, extent
        where; source: the rank that sent a foreign message; code: an error of MPI's, or how many bytes of a malformed
        message were read; exact: of one whose values were encoded without loss. Of a read flaw `source` is the rank
        whose own values were read, -1 for those of a sum.
    """

    cdef readonly str kind
    cdef readonly NativeOperation operation
    cdef readonly int lane, chunk, extent, source, code
    cdef readonly bint exact
    cdef const void* data
    cdef size_t nbytes

    def values(self, size_t n, dtype):
        """The running value of the extent, of n elements of float32 or float64; None where there is none."""
        if self.data == NULL:
            return None
        cdef size_t nbytes = n * dtype.itemsize
        return np.asarray(<uint8_t[:nbytes]> <uint8_t*> self.data).view(dtype) if n else np.empty(0, dtype)

    def payload(self):
        """A copy of the bytes that are malformed."""
        return np.frombuffer((<const char*> self.data)[:self.nbytes], np.uint8)


cdef Event event_of(CEvent& event, NativeOperation operation):
    cdef Event made = Event.__new__(Event)
    made.kind = EVENTS[<int> event.kind - 1]
    made.operation = operation
    made.lane, made.chunk, made.extent = event.lane, event.chunk, event.extent
    made.source, made.code, made.data, made.nbytes = event.source, event.code, event.data, event.nbytes
    made.exact = event.exact
    return made


cdef class Transport:
    """What an Engine sends and receives by; made as Loopback or MpiTransport."""

    cdef CTransport* base

    @property
    def busy(self):
        """Is a message under way?"""
        return not self.base.pending().empty()

    @property
    def pending(self):
        """(peer, is it received?) of every message, or part of one, that is under way. Of a sum of MPI's the peer is
        -1."""
        cdef const vector[CTicket]* tickets = &self.base.pending()
        cdef size_t at
        return [(tickets[0][at].peer, bool(tickets[0][at].receives)) for at in range(tickets.size())]

    @property
    def yields(self):
        """Does a poll that finds nothing lend the core to other processes?"""
        return self.base.yields()

    @property
    def exposed_from(self):
        """Values of so many bytes are exposed to peers on this host; 0 for none."""
        return self.base.exposed_from()

    def fetch(self, int peer, const uint8_t[::1] frame not None, uint8_t[::1] into not None):
        """Read what a frame of a peer exposes: (its mark if the peer waits for that, is it of own values, of a sum,
        unchecked), or None if it is none of this host, or is not exposed any more."""
        cdef CExposure exposure
        cdef int process = self.base.process_of(peer)
        if process == 0 or not exposure.read(bytes_in(frame) + HEADER_SIZE, frame.shape[0] - HEADER_SIZE):
            return None
        cdef uint8_t* begin = bytes_out(into)
        cdef size_t nbytes = into.shape[0]
        cdef bint good
        with nogil:
            good = c_fetch(process, exposure, 0, begin, nbytes)
        if not good:
            return None
        answered, own, summed = (bool(exposure.flags & <uint64_t> each) for each in (1, 2, 4))
        return exposure.mark if answered else 0, own, summed


cdef class Mailboxes:
    """Of all ranks of one process.

    tap
        (source, to, tag, array of bytes) -> what travels in their place, or None.
    """

    cdef CMailboxes data
    cdef object tap

    def __cinit__(self, tap=None):
        self.tap = tap
        if tap is not None:
            self.data.set_tap(call_tap, <void*> self)

    @property
    def empty(self):
        return self.data.empty()

    def put(self, int source, int to, int tag, const uint8_t[::1] message not None):
        self.data.put(source, to, tag, bytes_in(message), message.shape[0])

    def take(self, int source, int to, int tag, uint8_t[::1] room not None):
        """The bytes of the first message, which is in the room then, or as much of it as fits; None without one."""
        cdef size_t nbytes = 0
        found = self.data.take(source, to, tag, bytes_out(room), room.shape[0], nbytes)
        return nbytes if found else None


cdef void call_tap(void* context, int source, int to, int tag, vector[uint8_t]& message) noexcept with gil:
    cdef Mailboxes mailboxes = <Mailboxes> context
    changed = bytes(mailboxes.tap(source, to, tag, np.frombuffer(bytes(message), np.uint8).copy()))
    cdef const uint8_t* begin = changed
    message.assign(begin, begin + len(changed))


@cython.no_gc_clear  # the mailboxes must live as long
cdef class Loopback(Transport):
    """One rank among several of a process; `seed`: in which order what has come is told, 0 for that of asking; values
    of so many bytes are exposed, 0 for none."""

    cdef CLoopback* data
    cdef Mailboxes mailboxes

    def __cinit__(self, Mailboxes mailboxes not None, int rank, size_t limit=1 << 30, uint32_t seed=0,
                  size_t exposed_from=0):
        self.mailboxes = mailboxes
        self.data = new CLoopback(mailboxes.data, rank, limit, seed, exposed_from)
        self.base = self.data

    def __dealloc__(self):
        del self.data


cdef class MpiTransport(Transport):
    """Of one communicator, by the functions of the MPI library that is loaded.

    library
        the file of mpi4py's extension module, in which and in whose libraries they are looked up.
    byte, null_request, add, in_place, communicator
        handles as numbers (`in_place`: MPI_IN_PLACE); sizes in bytes. LookupError if a function is missing.
    sums
        has it MPI_Iallreduce?
    """

    cdef CMpiTransport* data
    cdef size_t status_size

    def __cinit__(self, str library not None, Handle byte, Handle null_request, Handle add, Handle in_place,
                  size_t request_size, size_t status_size, Handle communicator):
        cdef MpiFunctions functions
        if not functions.look_up(library.encode()):
            raise LookupError("MPI_Isend, MPI_Irecv, MPI_Testsome or MPI_Get_count")
        if request_size not in (4, 8):
            raise LookupError(f"handles of {request_size} bytes")
        cdef MpiHandles handles = MpiHandles(byte, null_request, add, in_place, request_size, status_size)
        self.status_size = status_size
        self.data = new CMpiTransport(functions, handles, communicator)
        self.base = self.data

    def __dealloc__(self):
        del self.data

    def set_topology(self, near, size_t most, size_t most_far):
        """near: of each rank, is it on this host? The most bytes of a message to those, and to others."""
        cdef vector[char] flags = near
        self.data.set_topology(flags, most, most_far)

    def set_processes(self, processes, size_t exposed_from):
        """Of each rank its process, 0 where this rank cannot read its memory; values of so many bytes are exposed, 0
        for none."""
        cdef vector[int] numbers = processes
        self.data.set_processes(numbers, exposed_from)

    @property
    def sums(self):
        return self.data.sums()

    def abandon(self):
        """(handle, is it a receive?) of all that is under way, which is the caller's from now on."""
        cdef size_t at
        found = []
        for at in range(self.data.pending().size()):
            receives = self.data.pending()[at].receives and self.data.pending()[at].peer != kAllPeers
            found.append((self.data.request(at), receives))
        self.data.forget()
        return found

    @property
    def statuses(self):
        """After an error of MPI's: the bytes of each status that it was given."""
        cdef const vector[uint8_t]* found = &self.data.statuses()
        content = (<const char*> found.data())[:found.size()]
        return [content[at : at + self.status_size] for at in range(0, len(content), self.status_size)]


cdef class Token:
    """A number in memory of this process, by which others try whether they can read it.

    process, address, value
        what they need.
    """

    cdef CMark* mark

    def __cinit__(self):
        self.mark = new CMark()

    def __dealloc__(self):
        del self.mark

    @property
    def process(self):
        return os.getpid()

    @property
    def address(self):
        return <uint64_t> self.mark.address()

    @property
    def value(self):
        return self.mark.value()

    @staticmethod
    def found(int process, uint64_t address, uint64_t value):
        """Can that of a process be read?"""
        cdef uint64_t seen = 0
        return c_read_memory(process, address, &seen, sizeof(seen)) and seen == value


@cython.no_gc_clear  # the transport must live as long
cdef class Engine:
    """Advances the operations under way on one transport, in the order in which they were started.

    operations, exchanges
        those that are under way, or done and not taken.
    """

    cdef CEngine* data
    cdef CProgressThread* thread
    cdef readonly Transport transport
    cdef readonly list operations, exchanges

    def __cinit__(self, Transport transport not None, double poll_every):
        self.transport, self.operations, self.exchanges = transport, [], []
        self.data = new CEngine(transport.base[0], poll_every)
        self.thread = new CProgressThread(self.data[0])

    def __dealloc__(self):
        with nogil:
            end_thread(self.thread)
        del self.data

    def hand_over(self):
        """A thread advances the operations from now on, if there are any, until `take_back`: call nothing else then."""
        if self.data.busy():
            with nogil:
                self.thread.hand_over()

    def take_back(self):
        """No thread works any more; has something come meanwhile?"""
        cdef bint received
        with nogil:
            received = self.thread.take_back()
        return received

    cpdef start(self, NativeOperation operation, uint64_t number, int tag):
        """Begin; `number` tells the order in which calls were started, `tag` is that of its first lane."""
        operation.data.number, operation.data.tag = number, tag
        self.operations.append(operation)
        self.data.start(operation.data[0])

    cpdef bint exchange(self, NativeExchange exchange, int tag) except -1:
        """Begin; False, and nothing is begun, if its messages must be cut into parts."""
        if exchange.data.longest() > self.transport.base.least_limit():
            return False
        self.exchanges.append(exchange)
        self.data.start(exchange.data[0], tag)
        return True

    cdef bint run_only(self, running, uint64_t number, int tag, double seconds, double until, double& waited,
                       c_bool& received) except -1:
        """Begin the only operation, or exchange, and `run`: is it done? seconds of waiting, has something come?

        "Not done" also if that was after `until` (of the monotonic clock), and for an event or a flaw:
        it stays in `operations` or `exchanges` then. An exchange must not be too long for one message.
        """
        cdef c_bool nothing = False
        cdef bint exchange = isinstance(running, NativeExchange)
        if not exchange:
            self.start(running, number, tag)
        elif not self.exchange(running, tag):
            raise ValueError("got an exchange that is too long for one message")
        with nogil:
            waited = self.data.run(seconds, received, nothing)
        cdef bint done
        if exchange:
            done = (<NativeExchange> running).data.done() and (<NativeExchange> running).data.as_expected()
        else:
            done = (<NativeOperation> running).data.done and not (<NativeOperation> running).data.first_flaw().known
        if not done or self.data.event.kind != Kind.kNone or now() > until:
            return False
        (self.exchanges if exchange else self.operations).pop()
        return True

    def take_done(self):
        """The exchanges and operations that are done, each in the order in which they were started; they are not kept
        here any more."""
        cdef NativeOperation each
        found = [each for each in self.operations if each.data.done]
        if found:
            self.operations = [each for each in self.operations if not each.data.done]
        if self.exchanges:
            found = [exchange for exchange in self.exchanges if exchange.done] + found
            self.exchanges = [exchange for exchange in self.exchanges if not exchange.done]
        return found

    def clear(self):
        """Forget what is under way. The operations must live until the transport is done with them."""
        self.data.clear()  # first: the lists may be the last to have the operations
        self.operations, self.exchanges = [], []

    cdef int withdraw(self) except -1:
        """What the operations under way have exposed must not be read any more, and no thread goes on with them."""
        with nogil:
            self.thread.take_back()
            self.data.withdraw()
        return 0

    def work(self):
        """Let lanes go on until a poll is due, and poll: (did one, has something completed, has something come)."""
        cdef Turn turn
        with nogil:
            turn = self.data.work()
        return turn.worked, turn.completed, turn.received

    def run(self, double seconds):
        """Until an operation is done, an Event, or so many seconds have passed: (seconds of waiting, has something
        come, was there nothing to do at the end)."""
        cdef c_bool received = False, nothing = False
        cdef double waited
        with nogil:
            waited = self.data.run(seconds, received, nothing)
        return waited, received, nothing

    def event(self):
        """What has stopped it, or None; it may go on then."""
        cdef CEvent found = self.data.event
        cdef NativeOperation each
        if found.kind == Kind.kNone:
            return None
        self.data.event = CEvent()
        for each in self.operations:
            if each.data == found.operation:
                return event_of(found, each)
        return event_of(found, None)


def stop_at_instruction(long number, int by=signal.SIGSTOP):
    """For tests: the process sends itself a signal at that instruction from now on, counted from 1; 0 for never."""
    stopping_signal.store(by)
    instructions_left.store(number)


def pretend_unreadable(bint unreadable):
    """For tests: from now on any memory is as if other processes could not read it, or no longer."""
    memory_unreadable.store(unreadable)


stop_at_instruction(int(os.environ.get("GQALLREDUCE_FAULT", 0)))
