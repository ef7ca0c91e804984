"""How the calls of an object begin, go on and end. Each is a generator of stages, which the communicator's progress
engine advances together with all others under way.
"""

from __future__ import annotations

import weakref

from gqallreduce import _kernels
from gqallreduce.errors import Error
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.transport.call import Call
from gqallreduce.transport.failure import give_up, raise_from
from gqallreduce.transport.link import CALLS_MOST
from gqallreduce.transport.progress import LISTEN


class Calls(_kernels.Calls):
    """Of one object. What every call asks for is in the class of C (kernels/repeat.pxi).

    number
        of the object, alike on all ranks; None while it is made.
    failures_in_step, raised_in_step
        since a step began: how many calls have failed, and has a caller been told?
    """

    def __init__(self, home, timeout: float):
        super().__init__(home, timeout)
        self.number = None
        self.failures_in_step, self.raised_in_step = 0, False

    def claim(self, call: Call, request) -> None:
        """A caller holds a request of this call: its key and buffers belong to it until that is waited for."""
        call.request = weakref.ref(request)
        call.forget_frames()
        self.home.unclaimed.append(call)

    def perform(self, name: str, stages, *given):
        """Begin a call and wait until it is done; its result, or its error."""
        return self.result(self.begin(name, stages, *given, wait=True))

    @usual_arithmetic()
    def begin_call(self, name: str, stages, given: tuple, wait: bool) -> Call:
        """As `begin` of the class of C; so those that follow."""
        call, claim = Call(name, self), self.home.claim()
        try:
            self.home.notice(self.timeout, LISTEN, self)
            self.require_usable()
            call.link = link = self.home.connect(self.timeout, self)
            self.require_usable()
            call.number = link.calls
            while len(link.progress.calls) >= CALLS_MOST:
                link.progress.run(link.progress.calls[0], self.timeout)
            link.begin(call)
            link.progress.start(call, stages(call, *given))
            if wait and not call.done:
                link.progress.run(call, self.timeout, waited=True)
            elif not call.done:
                link.progress.turn()
        except BaseException as error:
            self.failed(call, error)
        finally:
            self.home.release(claim)
        return call

    @usual_arithmetic()
    def complete_call(self, call: Call):
        if not call.done:
            claim = self.home.claim()
            try:
                call.link.progress.run(call, self.timeout)
            except BaseException as error:
                self.failed(call, error)
            finally:
                self.home.release(claim)
        return self.result(call)

    @usual_arithmetic()
    def advance_call(self, call: Call) -> bool:
        if call.link.progress.calls:
            done, claim = call.done, self.home.claim()
            try:
                call.link.progress.test(call, self.timeout)
            except BaseException as error:
                if not done or not isinstance(error, Exception):
                    self.failed(call, error)
                give_up(call.link, error, call, self.timeout)  # raised where those calls are waited for
            finally:
                self.home.release(claim)
        return call.done

    def result(self, call: Call):
        """Of a call that is done. Its key and buffers are free again."""
        if call in self.home.unclaimed:
            self.home.unclaimed.remove(call)
        if call.error is None:
            return call.result
        if call in self.unheard:
            self.unheard.remove(call)
        self.raised_in_step = True
        error = call.error
        if call.request is None:  # no one asks again: without a cycle through its traceback the buffers are free soon
            call.error = call.invalid = None
        try:
            raise error
        finally:
            del error

    def call_failed(self, call: Call) -> None:
        """A call of this object has ended by an error."""
        self.failures_in_step += 1
        self.unheard.append(call)
        if call.counted is not None:
            call.counted.take_back()

    def failed(self, call: Call, error: BaseException):
        """Something that ends this call, and all others under way."""
        self.raised_in_step = call.link is not None
        if call.link is None:
            raise_from(self.home.named(error, call.name), error)
        raise_from(give_up(call.link, error, call, self.timeout), error)

    def under_way(self) -> bool:
        """Is a call of this object under way?"""
        link = self.home.link
        if link is None:
            return False
        return link.at_once is self or any(call.owner is self for call in link.progress.calls)

    def finish_calls(self) -> None:
        if self.under_way():
            claim = self.home.claim()
            try:
                self.home.finish(self.timeout, self)
            finally:
                self.home.release(claim)

    # --- the end of an object ---

    def require_usable(self) -> None:
        if self.unusable is not None:
            raise Error(f"this object cannot be used any more {self.unusable}; make a new one on all ranks")

    def fail(self, error: BaseException) -> None:
        """No further calls, and out of the cache of quantized_allreduce."""
        self._end(f"after {type(error).__name__}" + f" ({error})" * bool(str(error)))

    def _end(self, why: str) -> None:
        if self.unusable is None:
            self.unusable = why
        cached = self.home.cached
        for name in [name for name, each in cached.items() if each is self]:
            del cached[name]
