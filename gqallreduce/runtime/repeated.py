"""The next call of a known key, carried out at once.

What `reduce` (reduction.py) finds out for any call is known here, nothing else is under way, and the runtime in C++
does the whole call while the caller waits: so neither a Call nor stages are made (kernels/repeat.pxi). What is not so
is left to `reduce`, before anything has happened. A call that is not over soon, or for which the runtime returns an
event, becomes a Call here and goes on as any other.
"""

from __future__ import annotations

from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime import native
from gqallreduce.runtime.arguments import Given
from gqallreduce.runtime.flaws import not_finite
from gqallreduce.runtime.halves import Half, first_of_all, part_of
from gqallreduce.runtime.operand import Operands, step_of
from gqallreduce.runtime.repeated_dense import KnownDense
from gqallreduce.runtime.repeated_stages import IndirectAgain
from gqallreduce.runtime.run import run_of
from gqallreduce.transport.call import Call, call_in_words
from gqallreduce.transport.exchange import FIRST_WORDS, PACKETS
from gqallreduce.transport.progress import LISTEN

NOT_BEGUN = object()
MOST = LISTEN  # seconds of the runtime, after which the call is looked at here


def repeated(allreduce, buf, key, out, half: Half | None = None, looked=None):
    """The result of a call, or NOT_BEGUN.

    half
        set if the call is a half of an allreduce.
    looked
        the Arrays that `buf` is, if the caller knows.
    """
    return _kernels.repeated(allreduce, buf, key, out, half, looked, Repeat, NOT_BEGUN, LISTEN, MOST)


class Repeat(_kernels.Repeat):
    """One such call: what is not the same for all kinds of calls, and those that become a Call."""

    __slots__ = ()

    @staticmethod
    def refuse(allreduce, key, error: BaseException) -> None:
        """Another rank has given up: raise what ends this call before it begins."""
        allreduce.failed(Call(call_in_words(key), allreduce), error)

    def known_call(self, agreed, plans) -> _kernels.KnownCall | None:
        """What the calls are like whose Agreed this is; None if they cannot be carried out at once."""
        plan, size, allreduce = agreed.plan, self.link.size, self.allreduce
        vectors = allreduce.ring_vectors / (1 if self.half is None else 2)
        given, found = (agreed, plans.measures, allreduce.scheme.feedback), None
        if agreed.dense:
            dense = KnownDense(agreed, allreduce, plans, self.link)
            if dense.fits:
                more = dense.one, allreduce.processors.host, True
                found = _kernels.KnownCall(*given, 1.0, 8 * FIRST_WORDS, *more)
        elif agreed.by_mpi or plan is None:
            return None
        elif plan.in_stages:
            found = _kernels.KnownCall(*given, vectors, 0, IndirectAgain, plan.processor)
        elif plan.repeats:
            exchanged = max(frame.SIZE * size * self.scatters, 8 * len(plan.tensors) * (plan.scales is not None))
            found = _kernels.KnownCall(*given, vectors, exchanged)
            forms = agreed.known.forms
            if self.half is not None and all(form.counts is None for form in forms):
                found.parts = tuple(part_of(allreduce.scheme.codec, form, size, allreduce.rank) for form in forms)
        agreed.again = found
        return found

    # --- of a half, or of a codec that learns ---

    def look_further(self) -> bool:
        """Is all as in the call before, of a half, or of a codec that learns?"""
        plan, half = self.known.plan, self.half
        if plan.recalls:
            states = map(self.allreduce.memory.get, self.agreed.keys)
            self.recalled = plan.known([None if state is None else state.learned for state in states])
            if self.recalled is None:
                return False
        if half is not None:
            if self.known.parts is not None and half.shard is None and half.counts is None:
                half.fit_again(self.known.parts, self.arrays.forms.forms, self.written)
            else:
                given = half.fit(self._make_given(), self.written, self.allreduce)
                if given.agreed is not self.agreed:
                    return False  # other counts than in the last call
            self.written = half.returned(self.written)
        return True

    def _make_given(self) -> Given:
        if self.given is None:
            self.given = Given.known(self.agreed, self.arrays, self.into)
            if self.half is not None:
                self.given.written = self.half.written
        return self.given

    def begin_half(self) -> None:
        processor = self.known.plan.processor
        if self.given is not None:
            self.half.take_shards(self.given, processor)
        self.states = self.half.begin(self.states, self.allreduce.memory, processor.arithmetic)

    def exchange_flaws(self) -> bool:
        """Have all ranks told each other that they found no flaw?"""
        if self.link.size == 1:
            return True
        self.exchange = self.running = self.operation.exchange_of_headers(self.agreed.signature)
        done = self.run_with_others(self.exchange, PACKETS, self.agreed.signature)
        if done:
            self.exchange.count(self.spent)
        return done

    # --- as a Call ---

    def as_call(self) -> Call:
        """The same call as a Call; the runtime may have begun it."""
        what, agreed = "call" if self.half is None else self.half.words, self.agreed
        name = f"a {what}" if agreed is None else call_in_words(agreed.name, what)
        call, link = Call(name, self.allreduce), self.link
        call.link, call.number = link, self.number
        call.previous, call.began = link.numbers.previous, link.numbers.began
        if self.operation is not None:
            self._make_run()
        if self.carrier is not None:
            self._make_given()
        call.held, call.data, call.states, call.result = self.given, self.run, self.states or {}, self.written
        call.wait, call.counted = self.waited, self.counted
        if self.running is not None or self.carrier is not None:
            call.stages = self._remaining_stages(call) if self.carrier is None else self.carrier.stages(self, call)
        if self.running is not None:
            call.running = self.running, next(call.stages)  # now in its `try`, so that it ends the Run in any case
        return call

    def _make_run(self) -> None:
        if self.run is not None:
            return
        agreed = self.agreed
        operands = Operands(self._make_given(), self.states, agreed.streams)
        self.run = run_of(self.recalled, self.known.plan, operands, agreed.name, agreed.signature, self.spent)
        if self.known.scales is not None:
            self.run.go_on(self.operation, self.coder)

    @usual_arithmetic()
    def wait_for(self, call: Call) -> None:
        progress = call.link.progress
        if call.link.size > 1 and call.running is not None:
            progress.take_up(call)
        else:
            progress.start(call, call.stages)
        if not call.done:
            progress.run(call, call.owner.timeout, waited=True)

    def _remaining_stages(self, call: Call):
        """The Stage that the runtime carries out now, and those after it."""
        run = self.run
        try:
            if self.exchange is not None:
                stages = self._flaw_stages(None)
                stage = next(stages)
                stage.go_on(self.exchange)
                yield stage
                flaw = yield from stages
            else:
                yield from self._stages_of_run()
                flaw = run.flaw
                if self.scatters:
                    flaw = yield from self._flaw_stages(flaw)
            if flaw is not None:
                raise not_finite(flaw, self.given.keys, self.given.sources, call.link.size)
            call.spent, self.waited = self.spent, call.wait
            self.take_effect()
        finally:
            run.end()

    def _flaw_stages(self, flaw):
        """Stages that give every rank the first flaw that any rank has found in a reduce-scatter."""
        run = self.run
        return first_of_all(run.plan, step_of(run.operands), run.signature, flaw, run.spent)

    def _stages_of_run(self):
        run = self.run
        if self.scales is not None:
            yield from run.stages_with(self.scales, self.running)
            return
        yield run
        if self.event is not None:
            run.answer(self.running, self.event)
        if self.link.size == 1:
            native.run_alone(run, self.running)
