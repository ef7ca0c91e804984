"""Which values a program may expose: ranks of the same host read them where they lie, in place of bytes in a message.

What is encoded without loss is the values themselves. Whether they are exposed is decided call by call (Lane::expose in
csrc/runtime_lane_exposing.cpp): long ones, all of whose readers are on this host. A program says only what may be:
values that nothing replaces while a reader may still read them.
"""

from __future__ import annotations

from gqallreduce.scheduling import instructions as code

# Values are sent; they are exposed until the reader has told that it has read them; or until the chunk's result comes,
# which cannot be before its only reader has.
NOT, UNTIL_READ, UNTIL_RESULT = range(3)


def exposures(program: tuple[code.Instruction, ...], scale: float) -> dict[int, int]:
    """number of an Encode in the program -> until when it may be exposed, if it may be.

    scale
        by which a finished sum is multiplied.
    """
    encodings = [(at, each) for at, each in enumerate(program) if isinstance(each, code.Encode)]
    found = {at: _exposure(program, at, each, scale) for at, each in encodings}
    return {at: exposes for at, exposes in found.items() if exposes != NOT}


def forwarded(program: tuple[code.Instruction, ...]) -> set[int]:
    """Slots with messages that were received and go on to other ranks, alone or joined with others."""
    received = {each.slot for each in program if isinstance(each, code.Post)}
    sent = {each.slot for each in program if isinstance(each, code.Transmit)}
    joined = {part.slot for each in program if isinstance(each, code.Join) for part in each.parts}
    return received & (sent | joined)


def _exposure(program, at: int, encode: code.Encode, scale: float) -> int:
    readers = [each for each in program if isinstance(each, code.Transmit) and each.slot == encode.slot]
    used = [each for each in program if _reads(each, encode.slot)]
    # What is read of one's own finished sum is the result, which it is already.
    kept = [each for each in used if isinstance(each, code.Decode) and each.result and not encode.own and scale == 1]
    if not readers or used != kept or _is_in_a_loop(program, at):
        return NOT
    writes = [each for each in program[at:] if _writes(each, encode.chunk, scale) and each not in kept]
    if not writes:
        return UNTIL_READ
    first = writes[0]
    until_result = encode.own and len(readers) == 1 and isinstance(first, code.Decode) and first.result
    return UNTIL_RESULT if until_result else NOT


def _reads(each: code.Instruction, slot: int) -> bool:
    """Does it need the bytes of a slot here?"""
    match each:
        case code.Join(parts=parts):
            return any(part.slot == slot for part in parts)
        case code.Decode(part=part) | code.Share(part=part):
            return part.slot == slot
    return False


def _writes(each: code.Instruction, chunk: int, scale: float) -> bool:
    """May it change the values of a chunk, own ones or a running value?"""
    match each:
        case code.BeginSum(chunk=other) | code.Decode(chunk=other) | code.Share(chunk=other):
            return other == chunk
        case code.Finish(chunk=other):
            return other == chunk and scale != 1
    return False


def _is_in_a_loop(program, at: int) -> bool:
    """May the instruction be carried out before others that are written before it?"""
    return any(isinstance(each, code.Jump) and each.target <= at for each in program[at:])
