"""Plans and operations for the runtime in C++ (csrc/gq/runtime): the same instructions on the same memory, as data.

What it cannot decide it tells as an event: a value that is not finite is looked for here, anything else is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.dtypes import FORMATS
from gqallreduce.coding.layout import BatchPiece, Chunk
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import WireError
from gqallreduce.runtime import exposing, trace
from gqallreduce.scheduling import instructions as code

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation
    from gqallreduce.runtime.plan import Plan

_ORDER = (
    code.Post, code.Encode, code.Join, code.Transmit, code.Wait, code.WaitAny, code.Jump, code.BeginSum, code.Decode,
    code.Share, code.Drop, code.Release, code.Finish,
)  # fmt: skip
_OP = {kind: number for number, kind in enumerate(_ORDER)}
_FLOAT32 = 3
_ALONE = 0.01  # seconds without a look at signals, on a single rank


# --- plans ---


def program_of(plan: Plan) -> _kernels.Program | None:
    """A Plan as the runtime reads it; None if Python must carry it out."""
    prepares = plan.codec.prepare is not None and plan.encodes_own
    for tensor in plan.tensors:
        if tensor.coder is None and not prepares:
            return None
    if plan.processor.pool is None or not plan.pieces:
        return None
    slots = 1 + max([each.slot for each in plan.program if hasattr(each, "slot")], default=-1)
    made = _kernels.Program(
        plan.rank, plan.size, slots, plan.lanes_at_once, plan.messages, plan.longest, plan.widest, plan.scale,
        plan.exact_coder,
    )  # fmt: skip
    for tensor in plan.tensors:
        target = FORMATS.get(tensor.form.dtype, _FLOAT32)
        made.add_tensor(
            tensor.coder,
            tensor.form.size,
            target if tensor.form.factors is None else _FLOAT32,
            target,
            tensor.codec.working == np.float64,
            not tensor.codec.linear,
            tensor.narrow,
        )
    in_residual = summed_in_residual(plan.program)
    exposes, forwarded = exposing.exposures(plan.program, plan.scale), exposing.forwarded(plan.program)
    for at, each in enumerate(plan.program):
        where = {"in_residual": True} if isinstance(each, code.BeginSum) and each.chunk in in_residual else {}
        if at in exposes:
            where["exposes"] = exposes[at]
        if isinstance(each, code.Post):
            where["forwarded"] = each.slot in forwarded
        made.add_instruction(_OP[type(each)], **_fields(each), **where)
    for lane in plan.pieces:
        made.add_lane()
        for number, chunk in enumerate(lane):
            made.add_chunk(chunk.bound, chunk.exact_bound, *_place_among(plan.error_holders(number), plan.rank))
            _add_chunk(made, chunk)
    return made


def summed_in_residual(program) -> set[int]:
    """Chunks whose sum may be formed in the new residual: this rank alone encodes it, and no other instruction
    replaces, shares or finishes it."""
    of_chunks = [each for each in program if hasattr(each, "chunk")]
    encoded = {each.chunk for each in of_chunks if isinstance(each, code.Encode)}
    return encoded - {each.chunk for each in of_chunks if not _allows_sum_in_residual(each)}


def _allows_sum_in_residual(each: code.Instruction) -> bool:
    match each:
        case code.BeginSum():
            return not each.clears
        case code.Decode():
            return each.adds or each.result
        case code.Encode():
            return each.alone and not each.own and not each.exact
    return isinstance(each, code.Drop)


def _place_among(holders, rank: int) -> tuple[int, int]:
    """(index of a rank, how many they are); -1 if it is none of them."""
    return holders.index(rank) if rank in holders else -1, len(holders)


def _fields(each: code.Instruction) -> dict:
    match each:
        case code.Post(slot, source, wires):
            return {"slot": slot, "peer": source, "wires": wires}
        case code.Join(slot, parts, wires):
            return {"slot": slot, "parts": parts, "wires": wires}
        case code.Transmit(slot, to):
            return {"slot": slot, "peer": to}
        case code.WaitAny(slots, targets, end):
            return {"choices": list(zip(slots, targets, strict=True)), "target": end}
        case code.Decode(part, chunk, adds, result, exact):
            where = {"slot": part.slot, "part": part.number, "chunk": chunk}
            return where | {"adds": adds, "result": result, "exact": exact}
        case code.Share(part, chunk, index, of):
            return {"slot": part.slot, "part": part.number, "chunk": chunk, "index": index, "of": of}
    return each._asdict()


def _add_chunk(made: _kernels.Program, chunk: Chunk) -> None:
    for piece in chunk.pieces:
        batch, at, parts = isinstance(piece, BatchPiece), 0, []
        for part in piece.parts:
            parts.append((part.tensor, part.start, part.stop, at))
            at += part.size
        made.add_piece(-1 if batch else piece.tensor, piece.size, parts)
    for each in chunk.extents:
        batch = isinstance(each.piece, BatchPiece)
        made.add_extent(
            each.table,
            -1 if batch else each.piece.tensor,
            each.start,
            each.total,
            each.piece.number,
            each.at,
            each.streams,
        )


# --- operations ---


def native_operation(operation: Operation) -> _kernels.NativeOperation | None:
    """An Operation whose codecs are prepared, for the runtime; None if Python must carry it out."""
    program, coders = operation.plan.native, None
    if program is None:
        return None
    if operation.plan.prepares:
        coders = [values.coder for values in operation.tensors]
        if None in coders:
            return None
    made = _kernels.NativeOperation(
        program, operation.processor.pool, operation.given, operation.frames, operation.step, coders,
        operation.plan.selects_own,
    )  # fmt: skip
    if operation.trace is not None:
        made.trace()
    if coders is not None and any(coder.selects for coder in coders):
        _keep_selected(operation, made)
    for place, flaw in operation.flaws.items():
        made.note(*place, *flaw)
    return made


def _keep_selected(operation: Operation, made: _kernels.NativeOperation) -> None:
    """Tell what of own values is encoded, of chunks whose own values may be."""
    program, exact = operation.plan.program, operation.codec.of_sums.exact
    encoded = {each.chunk for each in program if isinstance(each, code.Encode) and each.own and not each.exact}
    if exact:
        encoded |= {each.chunk for each in program if isinstance(each, code.BeginSum)}
    for lane, chunks in enumerate(operation.plan.pieces):
        for number in encoded:
            kept = operation.own_selection(chunks[number]) or ()
            made.keep(lane, number, [(each.index, each.value, each.counts, each.finite) for each in kept])


def answer(operation: Operation, native: _kernels.NativeOperation, event: _kernels.Event) -> None:
    """What the runtime tells of an operation: a flaw is noted, and it may go on; else the error is raised."""
    if event.kind == "foreign":
        raise ForeignFrame(event.source)
    if event.kind == "out of memory":
        raise MemoryError("no memory for messages or values of a call")
    if event.kind == "malformed":
        _raise_malformed(operation, event)
    if event.kind == "large sum":
        _raise_large_sum(operation, event)
    place, chunk = (event.lane, event.chunk), operation.plan.pieces[event.lane][event.chunk]
    extent = chunk.extents[event.extent]
    values, flaws = operation.values_of(extent), operation.flaws
    running = event.values(extent.size, values.working)
    if event.kind == "own flaw":
        flaws.find(place, extent, *values.own(extent), own=True)
    elif event.kind == "begun flaw":
        _, residual = values.own(extent)
        flaws.find(place, extent, running, residual, own=True, formed=True)
    elif event.kind == "sum flaw":
        flaws.find(place, extent, running, None, own=False)
    elif event.kind == "read flaw":
        flaws.find_read(place, extent, running, event.source)
    else:
        flaws.find_overflow(place, extent, running)
    native.note(*place, *flaws[place])


def _raise_malformed(operation: Operation, event: _kernels.Event):
    """The error of the codec, which reads the bytes once more."""
    payload = event.payload()
    if event.extent < 0:
        raise WireError(f"got {len(payload)} bytes after the header of a message, expected {event.code} for its values")
    extent = operation.plan.pieces[event.lane][event.chunk].extents[event.extent]
    y = operation.scratch(1, extent.size, operation.values_of(extent).working)
    operation.coder_of(extent, event.exact, sums=True).decode(payload, y, extent)
    raise WireError("got values that were not finite, and were changed while they were read, expected a finite message")


def _raise_large_sum(operation: Operation, event: _kernels.Event):
    """The error of the codec, which encodes the sum once more."""
    chunk = operation.plan.pieces[event.lane][event.chunk]
    extent, wire = chunk.extents[event.extent], np.empty(chunk.bound, np.uint8)
    y = event.values(extent.size, operation.values_of(extent).working)
    operation.codec_of(extent).of_sums.encode(y, None, None, wire, extent, None)
    raise AssertionError("the runtime refused a sum that the codec encodes")


def run_alone(stage, running: _kernels.NativeOperation) -> None:
    """On a single rank, where no lane waits: all of a Stage, one lane after the other."""
    while not running.done:
        event = running.run_alone(_ALONE)
        if event is not None:
            stage.answer(running, event)
    stage.account(running)


def account(operation: Operation, native: _kernels.NativeOperation) -> None:
    """What it cost, and its flaws, once it is done."""
    operation.spent.count(native)
    if operation.trace is not None:
        _trace(operation, native)
    if native.first_flaw is not None:
        operation.flaws.note(None, native.first_flaw)


def _trace(operation: Operation, native: _kernels.NativeOperation) -> None:
    call = repr(operation.key)
    for kind, op, began, ended, lane, chunk, peer, nbytes in native.spans:
        if kind == 0:
            operation.trace.add(trace.NAMES[_ORDER[op]], began, ended, call, lane, chunk=chunk)
        elif kind == 2:
            operation.trace.add(trace.SEND, began, ended, call, lane, to=peer, bytes=nbytes)
        else:
            operation.trace.add(trace.WAIT if kind == 1 else trace.PREPARE, began, ended, call, lane)
