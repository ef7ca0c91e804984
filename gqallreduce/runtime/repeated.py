"""The next call of a known key, carried out at once.

What `reduce` (reduction.py) finds out for any call is known here, nothing else is under way, and the runtime in C++
does the whole call while the caller waits: so neither a Call nor stages are made. What is not so is left to `reduce`,
before anything has happened. A call that is not over soon, or of which the runtime has something to tell, becomes a
Call here and goes on as any other.
"""

from __future__ import annotations

from time import perf_counter

from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime import arguments, native
from gqallreduce.runtime.flaws import not_finite
from gqallreduce.runtime.operand import Operands
from gqallreduce.runtime.run import Run
from gqallreduce.stats import Spent
from gqallreduce.transport.call import Call
from gqallreduce.transport.progress import LISTEN

MISSED = object()


def repeated(allreduce, buf, key, out):
    """The result of a call, or MISSED: then it has not begun."""
    last, began = allreduce.plans.last(key), perf_counter()
    if last is None or not allreduce.repeats or last.by_mpi or last.plan is None or not last.plan.repeats:
        return MISSED
    home = allreduce.home
    claim = home.claim()
    try:
        link = home.free_link(LISTEN)
        if link is None or allreduce.unusable is not None or allreduce.unheard:
            return MISSED
        return Repeat(allreduce, link, last, began).carry_out(buf, out)
    finally:
        home.release(claim)


class Repeat:
    """One such call. What it is made of is None until it is known."""

    __slots__ = ("_allreduce", "_began", "_event", "_given", "_last", "_link", "_norm", "_number", "_result", "_run",
                 "_running", "_states")  # fmt: skip

    def __init__(self, allreduce, link, last, began: float):
        self._allreduce, self._link, self._last, self._began = allreduce, link, last, began
        self._number = link.calls
        self._given = self._result = self._states = self._norm = self._run = self._running = self._event = None

    def carry_out(self, buf, out):
        """The result, or MISSED. What goes wrong ends the call on all ranks, as any other."""
        call, allreduce, link = None, self._allreduce, self._link
        try:
            if not self._look(buf, out):
                return MISSED
            link.next(allreduce)
            self._prepare()
            waited = self._carry_out()
            if waited is not None:
                self._run.account(self._running)
                self._take_effect(waited)
                return self._result
            call = self._call()
            _go_on(call)
        except BaseException as error:
            allreduce.failed(call or self._call(), error)
        return allreduce.result(call)

    def _look(self, buf, out) -> bool:
        """Is `buf` what the call before was given? An error in looking is left to `reduce`, which tells the others."""
        try:
            self._given = arguments.known_as(self._last, buf, out, self._allreduce.memory)
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

    def _carry_out(self) -> float | None:
        """The seconds of waiting; None if the call must go on as a Call."""
        link, running = self._link, self._running
        if link.size > 1:
            tag = link.tag(self._number, 0, self._run.signature)
            return link.progress.carry_out(running, self._number, tag, link.previous + self._allreduce.timeout)
        self._event = running.run_alone(LISTEN)
        return 0.0 if self._event is None and running.done and running.first_flaw is None else None

    def _take_effect(self, waited: float) -> Spent:
        run, allreduce = self._run, self._allreduce
        if run.flaw is not None:
            raise not_finite(run.flaw, self._given.keys, self._given.sources, allreduce.size)
        spent = run.spent
        spent.wait, spent.total = waited, perf_counter() - self._began
        allreduce.memory.commit(self._states)
        return allreduce.account(spent, self._given.nbytes, self._norm)

    # --- as a Call ---

    def _call(self) -> Call:
        """The same, of which the runtime may have begun its part."""
        call, link = Call(arguments.called(self._last.name), self._allreduce), self._link
        call.link, call.number, call.previous, call.began = link, self._number, link.previous, link.began
        call.held, call.data, call.states, call.result = self._given, self._run, self._states or {}, self._result
        if self._running is not None:
            call.running = self._running, self._run
            call.stages = self._rest(call)
        return call

    def _rest(self, call: Call):
        """What is left of it once the runtime is done: no stage."""
        try:
            if self._event is not None:
                self._run.answer(self._running, self._event)
            if call.link.size == 1:
                native.run_alone(self._run, self._running)
            call.spent = self._take_effect(call.wait)
        finally:
            self._run.end()
        return
        yield


@usual_arithmetic()
def _go_on(call: Call) -> None:
    """Until it is done."""
    progress = call.link.progress
    if call.link.size > 1:
        progress.take_up(call)
        progress.run(call, call.owner.timeout, waited=True)
    else:
        progress.start(call, call.stages)
