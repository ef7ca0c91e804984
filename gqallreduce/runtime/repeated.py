"""The next call of a known key, carried out at once.

What `reduce` (reduction.py) finds out for any call is known here, nothing else is under way, and the runtime in C++
does the whole call while the caller waits: so neither a Call nor stages are made. What is not so is left to `reduce`,
before anything has happened. A call that is not over soon, or for which the runtime returns an event, becomes a Call
here and goes on as any other.
"""

from __future__ import annotations

from time import perf_counter

from gqallreduce._kernels import NativeExchange, float_control_is_usual
from gqallreduce.coding import frame
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime import arguments, native
from gqallreduce.runtime.flaws import not_finite
from gqallreduce.runtime.halves import Half, first_of_all
from gqallreduce.runtime.memory import keep_learned
from gqallreduce.runtime.operand import Operands, step_of
from gqallreduce.runtime.reduction import take_effect
from gqallreduce.runtime.run import run_of
from gqallreduce.stats import Spent
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
        return Repeat(allreduce, link, began, half).result(buf, key, out, looked)
    finally:
        home.release(claim)


class Repeat:
    """One such call. Attributes are None until they are set.

    _running
        what the runtime carries out now: first the exchange of `_scales`, if there are any, then the operation of the
        Run, in a reduce-scatter last `_exchange`, by which all ranks learn of a value that is not finite.
    _counted
        as of a Call.
    _known
        the Prepared of each tensor, of a plan that `recalls`; else None.
    _scales
        own scales (float64) until ranks have agreed on the largest.
    """

    __slots__ = ("_allreduce", "_began", "_counted", "_event", "_exchange", "_given", "_half", "_known", "_last",
                 "_link", "_norm", "_number", "_result", "_run", "_running", "_scales", "_scatters", "_states",
                 "_waited")  # fmt: skip

    def __init__(self, allreduce, link, began: float, half: Half | None):
        self._allreduce, self._link, self._began, self._half = allreduce, link, began, half
        self._scatters = half is not None and half.scatters
        self._number, self._waited = link.calls, 0.0
        self._last = self._given = self._result = self._states = self._norm = self._counted = None
        self._run = self._running = self._event = self._exchange = self._scales = self._known = None

    def result(self, buf, key, out, looked):
        """The object that is written, or NOT_BEGUN. What goes wrong ends the call on all ranks, as any other."""
        call, allreduce, link = None, self._allreduce, self._link
        try:
            if not self._look(buf, key, out, looked):
                return NOT_BEGUN
            link.count(allreduce)
            link.at_once = allreduce
            self._prepare()
            if (
                (not self._last.plan.shares_scales or self._scales_at_once())
                and self._run_at_once()
                and (not self._scatters or self._exchange_flaws_at_once())
            ):
                self._take_effect(self._waited)
                return self._result
            call = self._as_call()
            link.at_once = None
            _wait_until_done(call)
        except BaseException as error:
            allreduce.failed(call or self._as_call(), error)
        finally:
            link.at_once = None
        return allreduce.result(call)

    def _look(self, buf, key, out, looked) -> bool:
        """Is all as in the call before? An error in looking is left to `reduce`, which tells the other ranks."""
        allreduce, half = self._allreduce, self._half
        try:
            plans = allreduce.plans if half is None else allreduce.plans_of(half.which)
            last = self._last = plans.last(key)
            if last is None or last.by_mpi or last.plan is None or not last.plan.repeats:
                return False
            trials = last.trials
            if plans.measures and (half is not None or not trials.keeps(last.choice)):
                return False
            if last.plan.recalls:
                states = map(allreduce.memory.get, last.keys)
                self._known = last.plan.known([None if state is None else state.learned for state in states])
                if self._known is None:
                    return False
            if (self._scatters or last.plan.shares_scales) and self._longest_exchanged() > self._link.requests.shortest:
                return False  # it may not fit into one message
            given, result = arguments.known_as(last, buf, out, allreduce.memory, looked), buf if out is None else out
            if given is not None and half is not None:
                given = half.fit(given, result, allreduce)
                if given.agreed is not last:
                    return False  # other counts than in the last call
                result = half.returned(result)
        except Exception:
            return False
        self._given, self._result = given, result
        return given is not None

    def _longest_exchanged(self) -> int:
        """Bytes of the longest message of an exchange before or after the Run."""
        plan = self._last.plan
        return max(frame.SIZE * self._link.size * self._scatters, 8 * len(plan.tensors) * plan.shares_scales)

    def _prepare(self) -> None:
        allreduce, last, given = self._allreduce, self._last, self._given
        allreduce.begun += not self._scatters
        if last.trials is not None:  # what runs is known
            last.trials.go_on()
            self._counted = last.trials
        processor, feedback = last.plan.processor, allreduce.scheme.feedback
        apart = self._half is not None or self._known is not None
        self._states, self._norm = allreduce.memory.next(last.keys, last.kept, processor, feedback, apart)
        if self._half is not None:
            self._half.take_shards(given, processor)
            self._states = self._half.begin(self._states, allreduce.memory, processor.arithmetic)
        operands = Operands(given, self._states, last.streams)
        self._run = run_of(self._known, last.plan, operands, last.name, last.signature, Spent(last.what, last.why))

    def _scales_at_once(self) -> bool:
        """Have all ranks agreed on the scales that they share?"""
        self._scales = self._run.own_scales()
        if self._link.size > 1:
            running = self._running = NativeExchange(self._link.rank, self._link.size, self._scales, gather=False)
            if not self._at_once(running, PREPARE):
                return False
        self._run.take_scales(self._scales)
        self._scales = None
        return True

    def _run_at_once(self) -> bool:
        """Is the runtime done with the Run, and nothing to be looked at?"""
        running = self._running = self._run.native()
        if self._link.size > 1:
            done = self._at_once(running, 0)
        else:
            self._event = running.run_alone(LISTEN)
            done = self._event is None and running.done and running.first_flaw is None
        if done:
            self._run.account(running)
        return done

    def _exchange_flaws_at_once(self) -> bool:
        """Have all ranks told each other that they found no flaw?"""
        if self._link.size == 1:
            return True
        running = self._exchange = self._running = self._running.exchange_of_headers(self._run.signature)
        done = self._at_once(running, PACKETS)
        if done:
            running.count(self._run.spent)
        return done

    def _at_once(self, running, lane: int) -> bool:
        link = self._link
        tag, until = link.tag(self._number, lane, self._run.signature), link.previous + self._allreduce.timeout
        done, waited = link.progress.run_at_once(running, self._number, tag, until)
        self._waited += waited
        return done

    def _flaw_stages(self, flaw):
        """Stages that give every rank the first flaw that any rank has found in a reduce-scatter."""
        run = self._run
        return first_of_all(run.plan, step_of(run.operands), run.signature, flaw, run.spent)

    def _take_effect(self, waited: float) -> Spent:
        if self._run.learned:
            self._states = keep_learned(self._states, self._given.keys, self._run.learned)
        return take_effect(
            self._allreduce, self._given, self._half, self._states, self._norm, self._run.spent, waited, self._began
        )

    # --- as a Call ---

    def _as_call(self) -> Call:
        """The same call as a Call; the runtime may have begun it."""
        what = "call" if self._half is None else self._half.words
        name = f"a {what}" if self._last is None else call_in_words(self._last.name, what)
        call, link = Call(name, self._allreduce), self._link
        call.link, call.number, call.previous, call.began = link, self._number, link.previous, link.began
        call.held, call.data, call.states, call.result = self._given, self._run, self._states or {}, self._result
        call.wait, call.counted = self._waited, self._counted
        if self._running is not None:
            call.stages = self._remaining_stages(call)
            call.running = self._running, next(call.stages)  # now in its `try`, so that it ends the Run in any case
        return call

    def _remaining_stages(self, call: Call):
        """The Stage that the runtime carries out now, and those after it."""
        run = self._run
        try:
            if self._exchange is not None:
                stages = self._flaw_stages(None)
                stage = next(stages)
                stage.go_on(self._exchange)
                yield stage
                flaw = yield from stages
            else:
                yield from self._stages_of_run()
                flaw = run.flaw
                if self._scatters:
                    flaw = yield from self._flaw_stages(flaw)
            if flaw is not None:
                raise not_finite(flaw, self._given.keys, self._given.sources, call.link.size)
            call.spent = self._take_effect(call.wait)
        finally:
            run.end()

    def _stages_of_run(self):
        run = self._run
        if self._scales is not None:
            yield from run.stages_with(self._scales, self._running)
            return
        yield run
        if self._event is not None:
            run.answer(self._running, self._event)
        if self._link.size == 1:
            native.run_alone(run, self._running)


@usual_arithmetic()
def _wait_until_done(call: Call) -> None:
    progress = call.link.progress
    if call.link.size > 1:
        progress.take_up(call)
        progress.run(call, call.owner.timeout, waited=True)
    else:
        progress.start(call, call.stages)
