"""The next call of a known key, carried out at once.

What `reduce` (reduction.py) finds out for any call is known here, nothing else is under way, and the runtime in C++
does the whole call while the caller waits: so neither a Call nor stages are made (kernels/repeat.pxi). What is not so
is left to `reduce`, before anything has happened. A call that is not over soon, or for which the runtime returns an
event, becomes a Call here and goes on as any other.
"""

from __future__ import annotations

from time import perf_counter

from gqallreduce import _kernels
from gqallreduce._kernels import float_control_is_usual
from gqallreduce.coding import frame
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime import native
from gqallreduce.runtime.arguments import Given
from gqallreduce.runtime.flaws import not_finite
from gqallreduce.runtime.halves import Half, first_of_all
from gqallreduce.runtime.memory import keep_learned
from gqallreduce.runtime.operand import Operands, step_of
from gqallreduce.runtime.run import run_of
from gqallreduce.transport.call import Call, call_in_words
from gqallreduce.transport.exchange import PACKETS, PREPARE
from gqallreduce.transport.progress import LISTEN

NOT_BEGUN = object()


def repeated(allreduce, buf, key, out, half: Half | None = None, looked=None):
    """The result of a call, or NOT_BEGUN.

    half
        set if the call is a half of an allreduce.
    looked
        the Arrays that `buf` is, if the caller knows.
    """
    if not allreduce.repeats or not float_control_is_usual():
        return NOT_BEGUN
    home, began = allreduce.home, perf_counter()
    claim = home.claim()
    try:
        try:
            link = home.free_link(allreduce.timeout, LISTEN, allreduce)
        except BaseException as error:
            allreduce.failed(Call(call_in_words(key), allreduce), error)
        if link is None or allreduce.unusable is not None or allreduce.unheard:
            return NOT_BEGUN
        return Repeat(allreduce, link, began, half, LISTEN).result(buf, key, out, looked, NOT_BEGUN)
    finally:
        home.release(claim)


class Repeat(_kernels.Repeat):
    """One such call: what is not the same for all kinds of calls, and those that become a Call."""

    __slots__ = ()

    # --- what the usual call has none of ---

    def known_call(self, agreed, plans) -> _kernels.KnownCall | None:
        """What the calls are like whose Agreed this is; None if they cannot be carried out at once."""
        if agreed.by_mpi or agreed.plan is None or not agreed.plan.repeats:
            return None
        vectors = self.allreduce.ring_vectors / (1 if self.half is None else 2)
        agreed.again = _kernels.KnownCall(agreed, plans.measures, self.allreduce.scheme.feedback, vectors)
        return agreed.again

    def look_further(self) -> bool:
        """Is all as in the call before, of a half, or of a codec that learns or shares scales?"""
        allreduce, plan, half = self.allreduce, self.known.plan, self.half
        if plan.recalls:
            states = map(allreduce.memory.get, self.agreed.keys)
            self.recalled = plan.known([None if state is None else state.learned for state in states])
            if self.recalled is None:
                return False
        if (self._scatters or plan.shares_scales) and self._longest_exchanged() > self.link.requests.shortest:
            return False  # it may not fit into one message
        self.given = Given.known(self.agreed, self.arrays, self.into)
        if half is not None:
            self.given = half.fit(self.given, self.written, allreduce)
            if self.given.agreed is not self.agreed:
                return False  # other counts than in the last call
            self.written = half.returned(self.written)
        return True

    @property
    def _scatters(self) -> bool:
        return self.half is not None and self.half.scatters

    def _longest_exchanged(self) -> int:
        """Bytes of the longest message of an exchange before or after the Run."""
        plan = self.known.plan
        return max(frame.SIZE * self.link.size * self._scatters, 8 * len(plan.tensors) * plan.shares_scales)

    def prepare_further(self) -> None:
        if self.half is not None:
            processor = self.known.plan.processor
            self.half.take_shards(self.given, processor)
            self.states = self.half.begin(self.states, self.allreduce.memory, processor.arithmetic)
        self._make_run()

    def _make_run(self) -> None:
        if self.given is None:
            self.given = Given.known(self.agreed, self.arrays, self.into)
        agreed = self.agreed
        operands = Operands(self.given, self.states, agreed.streams)
        self.run = run_of(self.recalled, self.known.plan, operands, agreed.name, agreed.signature, self.spent)

    def carry_out_further(self) -> bool:
        """Is the runtime done with all, and nothing to be looked at?"""
        return (
            (not self.known.plan.shares_scales or self._scales_at_once())
            and self._run_at_once()
            and (not self._scatters or self._exchange_flaws_at_once())
        )

    def keep_learned(self) -> None:
        """The Run is done: what its codec has learned becomes part of the States."""
        if self.run is not None and self.run.learned:
            self.states = keep_learned(self.states, self.given.keys, self.run.learned)

    def _scales_at_once(self) -> bool:
        """Have all ranks agreed on the scales that they share?"""
        self.scales = self.run.own_scales()
        if self.link.size > 1:
            self.running = _kernels.NativeExchange(self.link.rank, self.link.size, self.scales, gather=False)
            if not self.run_with_others(self.running, PREPARE):
                return False
        self.run.take_scales(self.scales)
        self.scales = None
        return True

    def _run_at_once(self) -> bool:
        """Is the runtime done with the Run, and nothing to be looked at?"""
        self.running = self.run.native()
        done = self.run_with_others(self.running, 0) if self.link.size > 1 else self.run_alone()
        if done:
            self.run.account(self.running)
        return done

    def _exchange_flaws_at_once(self) -> bool:
        """Have all ranks told each other that they found no flaw?"""
        if self.link.size == 1:
            return True
        self.exchange = self.running = self.running.exchange_of_headers(self.run.signature)
        done = self.run_with_others(self.exchange, PACKETS)
        if done:
            self.exchange.count(self.spent)
        return done

    def _flaw_stages(self, flaw):
        """Stages that give every rank the first flaw that any rank has found in a reduce-scatter."""
        run = self.run
        return first_of_all(run.plan, step_of(run.operands), run.signature, flaw, run.spent)

    # --- as a Call ---

    def as_call(self) -> Call:
        """The same call as a Call; the runtime may have begun it."""
        what, agreed = "call" if self.half is None else self.half.words, self.agreed
        name = f"a {what}" if agreed is None else call_in_words(agreed.name, what)
        call, link = Call(name, self.allreduce), self.link
        call.link, call.number = link, self.number
        call.previous, call.began = link.numbers.previous, link.numbers.began
        if self.spent is not None and self.run is None:
            self._make_run()
        call.held, call.data, call.states, call.result = self.given, self.run, self.states or {}, self.written
        call.wait, call.counted = self.waited, self.counted
        if self.running is not None:
            call.stages = self._remaining_stages(call)
            call.running = self.running, next(call.stages)  # now in its `try`, so that it ends the Run in any case
        return call

    def wait_for(self, call: Call) -> None:
        _wait_until_done(call)

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
                if self._scatters:
                    flaw = yield from self._flaw_stages(flaw)
            if flaw is not None:
                raise not_finite(flaw, self.given.keys, self.given.sources, call.link.size)
            call.spent, self.waited = self.spent, call.wait
            self.take_effect()
        finally:
            run.end()

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


@usual_arithmetic()
def _wait_until_done(call: Call) -> None:
    progress = call.link.progress
    if call.link.size > 1:
        progress.take_up(call)
        progress.run(call, call.owner.timeout, waited=True)
    else:
        progress.start(call, call.stages)
