"""The next call of a known key, carried out at once.

What `reduce` (reduction.py) finds out for any call is known here, nothing else is under way, and the runtime in C++
does the whole call while the caller waits: so neither a Call nor stages are made. What is not so is left to `reduce`,
before anything has happened; on several ranks also a call before which this rank has not looked for aborts for 2 ms. A
call that is not over soon, or for which the runtime returns an event, becomes a Call here and goes on as any other.
"""

from __future__ import annotations

from time import perf_counter

from gqallreduce._kernels import float_control_is_usual
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime import arguments, native
from gqallreduce.runtime.flaws import not_finite
from gqallreduce.runtime.operand import Operands
from gqallreduce.runtime.run import Run
from gqallreduce.stats import Spent
from gqallreduce.transport.call import Call, call_in_words
from gqallreduce.transport.progress import LISTEN

NOT_BEGUN = object()


def repeated(allreduce, buf, key, out):
    """The result of a call, or NOT_BEGUN."""
    if not allreduce.repeats or not float_control_is_usual():
        return NOT_BEGUN
    home, began = allreduce.home, perf_counter()
    claim = home.claim()
    try:
        link = home.free_link(LISTEN)
        if link is None or allreduce.unusable is not None or allreduce.unheard:
            return NOT_BEGUN
        return Repeat(allreduce, link, began).result(buf, key, out)
    finally:
        home.release(claim)


class Repeat:
    """One such call. Attributes are None until they are set."""

    __slots__ = ("_allreduce", "_began", "_event", "_given", "_last", "_link", "_norm", "_number", "_result", "_run",
                 "_running", "_states", "_waited")  # fmt: skip

    def __init__(self, allreduce, link, began: float):
        self._allreduce, self._link, self._began = allreduce, link, began
        self._number, self._waited = link.calls, 0.0
        self._last = self._given = self._result = self._states = None
        self._norm = self._run = self._running = self._event = None

    def result(self, buf, key, out):
        """The object that is written, or NOT_BEGUN. What goes wrong ends the call on all ranks, as any other."""
        call, allreduce, link = None, self._allreduce, self._link
        try:
            if not self._look(buf, key, out):
                return NOT_BEGUN
            link.count(allreduce)
            link.at_once = allreduce
            self._prepare()
            if self._run_at_once():
                self._run.account(self._running)
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

    def _look(self, buf, key, out) -> bool:
        """Is all as in the call before? An error in looking is left to `reduce`, which tells the other ranks."""
        allreduce = self._allreduce
        try:
            last = self._last = allreduce.plans.last(key)
            if last is None or last.by_mpi or last.plan is None or not last.plan.repeats:
                return False
            self._given = arguments.known_as(last, buf, out, allreduce.memory)
        except Exception:
            return False
        self._result = buf if out is None else out
        return self._given is not None

    def _prepare(self) -> None:
        allreduce, last, given = self._allreduce, self._last, self._given
        allreduce.begun += 1
        processor, feedback = last.plan.processor, allreduce.scheme.feedback
        self._states, self._norm = allreduce.memory.next(last.keys, last.kept, processor, feedback)
        operands = Operands(given, self._states.values(), last.streams)
        self._run = Run(last.plan, operands, last.name, last.signature, Spent(last.what, last.why))
        self._running = self._run.native()

    def _run_at_once(self) -> bool:
        """Is the runtime done with it, and nothing to be looked at?"""
        link, running = self._link, self._running
        if link.size > 1:
            tag, until = link.tag(self._number, 0, self._run.signature), link.previous + self._allreduce.timeout
            done, self._waited = link.progress.run_at_once(running, self._number, tag, until)
            return done
        self._event = running.run_alone(LISTEN)
        return self._event is None and running.done and running.first_flaw is None

    def _take_effect(self, waited: float) -> Spent:
        run, allreduce = self._run, self._allreduce
        if run.flaw is not None:
            raise not_finite(run.flaw, self._given.keys, self._given.sources, allreduce.size)
        spent = run.spent
        spent.wait, spent.total = waited, perf_counter() - self._began
        allreduce.memory.commit(self._states)
        return allreduce.account(spent, self._given.nbytes, self._norm)

    # --- as a Call ---

    def _as_call(self) -> Call:
        """The same, of which the runtime may have begun its part."""
        name = "a call" if self._last is None else call_in_words(self._last.name)
        call, link = Call(name, self._allreduce), self._link
        call.link, call.number, call.previous, call.began = link, self._number, link.previous, link.began
        call.held, call.data, call.states, call.result = self._given, self._run, self._states or {}, self._result
        call.wait = self._waited
        if self._running is not None:
            call.running = self._running, self._run
            call.stages = self._remaining_stages(call)
            next(call.stages)  # into its `try`, so that it ends the Run whatever happens
        return call

    def _remaining_stages(self, call: Call):
        """What is left of it once the runtime is done: no stage."""
        try:
            yield
            if self._event is not None:
                self._run.answer(self._running, self._event)
            if call.link.size == 1:
                native.run_alone(self._run, self._running)
            call.spent = self._take_effect(call.wait)
        finally:
            self._run.end()


@usual_arithmetic()
def _wait_until_done(call: Call) -> None:
    progress = call.link.progress
    if call.link.size > 1:
        progress.take_up(call)
        progress.run(call, call.owner.timeout, waited=True)
    else:
        progress.start(call, call.stages)
