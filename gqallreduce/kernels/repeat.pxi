"""The next call of a known key, as far as Python has nothing to find out (runtime/repeated.py has the rest)."""


cdef class Calls:
    """What every call asks of its object (runtime/calls.py, allreduce.py).

    home, timeout
        its communicator's; seconds without receiving anything after which a call fails.
    repeats
        may calls be carried out at once?
    begun
        how many of those that ranks have alike have begun.
    unusable
        why it cannot be used any more, None if it can.
    unheard
        calls that ended by an error that no caller has waited for yet.
    memory, stats, plans
        the States of its keys, what calls have cost, and what runs.
    """

    cdef readonly Home home
    cdef public double timeout
    cdef public bint repeats
    cdef public int64_t begun
    cdef public object unusable
    cdef readonly list unheard
    cdef public KeptStates memory
    cdef public Recorded stats
    cdef public Plans plans

    def __init__(self, Home home not None, double timeout):
        self.home, self.timeout, self.unheard = home, timeout, []

    # What a caller's error may leave: what is under way then is not read by other ranks any more.

    def begin(self, str name, stages, *given, bint wait=False):
        """Begin a call, whose stages are `stages(call, *given)`, and do what can be done without waiting, or all."""
        try:
            return self.begin_call(name, stages, given, wait)
        except BaseException as error:
            self.home.withdraw(error)
            raise

    def complete(self, call):
        """Wait until a call is done that the caller has left meanwhile; its result, or its error."""
        try:
            return self.complete_call(call)
        except BaseException as error:
            self.home.withdraw(error)
            raise

    def advance(self, call):
        """Do what can be done without waiting; is the call done?"""
        try:
            return self.advance_call(call)
        except BaseException as error:
            self.home.withdraw(error)
            raise

    def finish(self):
        """Until no call of this object is under way. What goes wrong is raised where its request is waited for."""
        try:
            return self.finish_calls()
        except BaseException as error:
            self.home.withdraw(error)
            raise

    def request(self, str name, stages, type kind, given):
        """Begin a call and return its request, made as `kind`; an error of this rank's own is raised at once."""
        try:
            call = self.begin(name, stages, *given)
            if call.invalid is not None:
                self.complete(call)
            return kind(self, call)
        except BaseException as error:
            self.home.withdraw(error)
            raise


cdef class Repeat:
    """One such call. Attributes are None until they are set.

    number
        of the call on the Link.
    arrays, into
        what is summed, and where results are written; None in place.
    written
        the object that the call returns.
    running
        what the runtime carries out now: first the exchange of `scales`, if there are any, then `operation`, in a
        reduce-scatter last `exchange`, by which all ranks learn of a value that is not finite.
    event
        what the runtime told on a single rank.
    counted, given, run
        as of a Call, but for `run`: what is under way. Set where they are asked for.
    recalled
        the Prepared of each tensor, of a plan that `recalls`.
    scales, coder
        own scales (float64) until ranks have agreed on the largest; the Coder that follows from these.
    carrier
        what carries the call out where that is not one operation of the runtime; there is no `operation` then.
    waited
        seconds.
    """

    cdef readonly Calls allreduce
    cdef readonly Link link
    cdef readonly Agreed agreed
    cdef readonly object half, norm, counted
    cdef readonly Arrays arrays, into
    cdef readonly Spent spent
    cdef readonly int64_t number
    cdef readonly double began
    cdef public double waited
    cdef public object written, states, running, event, exchange, scales, recalled, given, run, carrier
    cdef readonly Coder coder
    cdef readonly KnownCall known
    cdef readonly NativeOperation operation
    cdef readonly bint scatters
    cdef double most

    cdef int make(self, Calls allreduce, Link link, double began, half, double most) except -1:
        """most: seconds of the runtime after which Python looks at the call."""
        self.allreduce, self.link, self.half, self.began, self.most = allreduce, link, half, began, most
        self.number, self.scatters = link.numbers.calls, half is not None and half.scatters
        return 0

    cdef result(self, buf, key, out, Arrays looked, not_begun):
        """The object that is written, or `not_begun`. What goes wrong ends the call on all ranks, as any other."""
        call = None
        cdef Link link = self.link
        try:
            if not self._look(buf, key, out, looked):
                return not_begun
            link.count(self.allreduce)
            link.at_once = self.allreduce
            self._prepare()
            if self._carry_out():
                self.take_effect()
                return self.written
            call = self.as_call()
            link.at_once = None
            self.wait_for(call)
        except BaseException as error:
            self.allreduce.failed(self.as_call() if call is None else call, error)
        finally:
            link.at_once = None
        return self.allreduce.result(call)

    cdef bint _look(self, buf, key, out, Arrays looked) except -1:
        """Is all as in the call before? An error in looking is left to `reduce`, which tells the other ranks."""
        try:
            return self._is_as_before(buf, key, out, looked)
        except Exception:
            return False

    cdef bint _is_as_before(self, buf, key, out, Arrays looked) except -1:
        cdef Plans plans = self.allreduce.plans if self.half is None else self.allreduce.plans_of(self.half.which)
        cdef Agreed agreed = plans.last(key)
        self.agreed = agreed
        if agreed is None:
            return False
        cdef KnownCall known = agreed.again
        if known is None or known.plan is not agreed.plan:
            known = self.known_call(agreed, plans)
            if known is None:
                return False
        if known.measures and (self.half is not None or not agreed.trials.keeps(agreed.choice)):
            return False
        self.arrays = known_source(agreed, buf, self.allreduce.memory, looked)
        if self.arrays is None:
            return False
        if out is not None:
            self.into = known_target(self.arrays, out)
            if self.into is None:
                return False
        self.known, self.written = known, buf if out is None else out
        if known.exchanged and known.exchanged > <size_t> self.link.requests.least_limit:
            return False  # it may not fit into one message
        return self.half is None and not known.recalls or self.look_further()

    cdef int _prepare(self) except -1:
        cdef Calls allreduce = self.allreduce
        cdef Agreed agreed = self.agreed
        cdef Trials trials = agreed.trials
        if not self.scatters:
            allreduce.begun += 1
        if trials is not None and not self.known.compares:  # what runs is known
            trials.go_on()
            self.counted = trials
        apart = self.half is not None or self.recalled is not None
        processor, fed = self.known.processor, self.known.feeds_back
        self.states, self.norm = allreduce.memory.next(agreed.keys, agreed.kept, processor, fed, apart)
        self.spent = Spent.of(agreed.what, agreed.why)
        if self.half is not None:
            self.begin_half()
        if self.known.carriers is not None:
            return 0
        cdef list coders = None
        cdef uint64_t signature = self.known.signature
        cdef Py_ssize_t number
        if self.recalled is not None:
            coders = []
            for number in range(len(self.recalled)):
                prepared = self.recalled[number]
                coders.append(prepared.codec.kept_coder)
                signature = marked(signature, number, prepared.mark)
        self.operation = NativeOperation.of_known(self.known, self.arrays, self.into, self.states, signature, coders)
        return 0

    cdef bint _carry_out(self) except -1:
        """Is the runtime done, and nothing to be looked at?"""
        if self.known.carriers is not None:
            self.carrier = self.known.carriers()
            return self.carrier.carry_out(self)
        if self.known.scales is not None and not self._agree_on_scales():
            return False
        self.running = self.operation
        cdef bint done
        if self.link.size == 1:
            done = self._run_alone()
        else:
            done = self.run_with_others(self.operation, 0, self.known.signature)
        if done:
            self.spent.count(self.operation)
        return done and (not self.scatters or self.exchange_flaws())

    cdef bint _agree_on_scales(self) except -1:
        """Have all ranks agreed on the scales that they share?"""
        cdef SharedScales shared = self.known.scales
        self.scales = shared.own(self.operation)
        if self.link.size > 1:
            self.running = NativeRounds(self.link.rank, self.link.size, self.scales, False)
            if not self.run_with_others(self.running, shared.lane, self.known.signature):
                return False
        self.coder = shared.take(self.operation, self.scales)
        self.scales = None
        return True

    cpdef take_effect(self):
        """The call has succeeded."""
        cdef double nbytes = self.arrays.forms.nbytes
        if self.recalled is not None:
            self._keep_learned()
        self.spent.wait, self.spent.total = self.waited, now() - self.began
        cdef Trials trials = self.agreed.trials
        if trials is not None and trials.repeated is not None:
            trials.note(trials.repeated, self.spent.total)
        self.spent.dense_bytes = self.known.vectors * nbytes
        self.allreduce.memory.commit(self.states)
        self.allreduce.stats.record(self.spent, self.norm)

    cdef int _keep_learned(self) except -1:
        """What codecs have learned in the call becomes part of the States, which are of this call alone."""
        for key, prepared in zip(self.agreed.keys, self.recalled):
            self.states[key] = (<State> self.states[key]).knowing(prepared.learned)
        return 0

    cdef bint _run_alone(self) except -1:
        """On a single rank."""
        self.event = self.operation.run_alone(self.most)
        return self.event is None and self.operation.data.done and not self.operation.data.first_flaw().known

    cpdef bint run_with_others(self, running, int lane, uint64_t signature) except -1:
        """The operation or an exchange, whose tag is made of these."""
        cdef Numbers numbers = self.link.numbers
        cdef double until = numbers.previous + self.allreduce.timeout
        cdef int64_t tag = numbers.tag(self.number, lane, signature)
        done, waited = self.link.progress.run_at_once(running, self.number, tag, self.most, until)
        self.waited += waited
        return done


def repeated(Calls allreduce not None, buf, key, out, half, Arrays looked, type kind not None, not_begun,
             double within, double most):
    """The result of a call, or `not_begun` if that is not so. kind: what a Repeat is made as.

    within, most
        seconds in which looking for aborts once is enough, and those of the runtime after which Python looks at a call.
    """
    if not allreduce.repeats or not c_float_control_is_usual():
        return not_begun
    cdef double began = now()
    cdef Home home = allreduce.home
    cdef Claim claim = home.claim()
    cdef Repeat made
    cdef Link link = None
    claim.released = True
    try:
        try:
            link = home.free_link(allreduce.timeout, within, allreduce)
        except BaseException as error:
            kind.refuse(allreduce, key, error)
        if link is None or allreduce.unusable is not None or allreduce.unheard:
            return not_begun
        made = kind()
        made.make(allreduce, link, began, half, most)
        return made.result(buf, key, out, looked, not_begun)
    except BaseException as error:
        home.withdraw(error)
        raise
    finally:
        try:
            home.release(claim)
        finally:
            home.claims.release(claim)
