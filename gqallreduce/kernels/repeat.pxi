"""The next call of a known key, as far as Python has nothing to find out (runtime/repeated.py has the rest)."""


cdef class KnownCall:
    """What the calls of a key, or of a group, on one Plan have alike.

    plan
        the Plan.
    """

    cdef readonly object plan
    cdef bint measures, feeds_back, selects, shares_scales, recalls
    cdef double vectors
    cdef size_t exchanged
    cdef uint64_t signature
    cdef vector[uint64_t] streams
    cdef Program program
    cdef Pool pool

    def __init__(self, agreed, bint measures, bint feeds_back, double vectors, size_t exchanged):
        """agreed: what runs (plans.py); measures: does `auto/`? feeds_back: has the scheme error feedback? vectors: how
        many times what is summed dense sums would send; exchanged: bytes of the longest message of exchanges before and
        after."""
        self.vectors, self.exchanged = vectors, exchanged
        self.plan, self.measures, self.feeds_back = agreed.plan, measures, feeds_back
        self.selects, self.shares_scales = self.plan.selects_own, self.plan.shares_scales
        self.recalls = self.plan.recalls
        self.streams, self.signature = agreed.streams, agreed.signature
        self.program, self.pool = self.plan.native, self.plan.processor.pool


cdef Arrays known_source(agreed, buf, KeptStates memory, Arrays looked):
    """The Arrays that `buf` is, if these keys may be called so, and it is as in the call before; else None.

    looked: the same by forms of the caller's, if it knows; these are compared once.
    """
    cdef KnownForms forms
    if not states_fit(agreed.keys, agreed.kept, memory.kept, memory.kept_in_step):
        return None
    forms = agreed.known
    if looked is not None and looked.forms is not forms and looked.forms.forms == forms.forms:
        agreed.known = forms = looked.forms
    return looked if looked is not None and looked.forms is forms else forms.look(buf)


cdef Arrays known_target(Arrays source, out):
    """The Arrays that `out` is, if it is of the same forms and shares no memory with the source; else None."""
    cdef Arrays found = source.forms.look(out)
    return None if found is None or found.meet(source) else found


def known_arrays(agreed, buf, out, memory, Arrays looked):
    """(source, target or None for an in-place call) as Arrays, of a call like the last one; None for any other."""
    cdef Arrays source = known_source(agreed, buf, memory, looked), into = None
    if source is None:
        return None
    if out is not None:
        into = known_target(source, out)
    return None if out is not None and into is None else (source, into)


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
    scales, units
        own scales (float64) until ranks have agreed on the largest; what follows from these.
    waited
        seconds.
    """

    cdef readonly object allreduce, link, half, agreed, norm, counted
    cdef readonly Arrays arrays, into
    cdef readonly Spent spent
    cdef readonly int64_t number
    cdef readonly double began
    cdef public double waited
    cdef public object written, states, running, event, exchange, scales, units, recalled, given, run
    cdef readonly KnownCall known
    cdef readonly NativeOperation operation
    cdef readonly bint scatters
    cdef double within

    def __init__(self, allreduce, link, double began, half, double within):
        """within: seconds of the runtime after which Python looks at the call."""
        self.allreduce, self.link, self.half, self.began, self.within = allreduce, link, half, began, within
        self.number, self.scatters = link.calls, half is not None and half.scatters

    cdef result(self, buf, key, out, Arrays looked, not_begun):
        """The object that is written, or `not_begun`. What goes wrong ends the call on all ranks, as any other."""
        call, link = None, self.link
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
        plans = self.allreduce.plans if self.half is None else self.allreduce.plans_of(self.half.which)
        agreed = self.agreed = plans.latest.get(key) if key is None or type(key) is str else plans.last(key)
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
        if known.exchanged and known.exchanged > <size_t> self.link.requests.shortest:
            return False  # it may not fit into one message
        return self.half is None and not known.recalls or self.look_further()

    cdef int _prepare(self) except -1:
        allreduce, agreed, plan = self.allreduce, self.agreed, self.known.plan
        trials = agreed.trials
        if not self.scatters:
            allreduce.begun += 1
        if trials is not None:  # what runs is known
            trials.go_on()
            self.counted = trials
        apart = self.half is not None or self.recalled is not None
        memory, fed = allreduce.memory, self.known.feeds_back
        self.states, self.norm = memory.next(agreed.keys, agreed.kept, plan.processor, fed, apart)
        self.spent = Spent(agreed.what, agreed.why)
        if self.half is not None:
            self.begin_half()
        if self.recalled is not None:
            self.operation = self.recalling_operation()
        else:
            self.operation = NativeOperation.of_known(self.known, self.arrays, self.into, self.states)
        return 0

    cdef bint _carry_out(self) except -1:
        """Is the runtime done, and nothing to be looked at?"""
        if self.known.shares_scales and not self.agree_on_scales():
            return False
        self.running = self.operation
        cdef bint done = self._run_alone() if self.link.size == 1 else self.run_with_others(self.operation, 0)
        if done:
            self.spent.count(self.operation)
        return done and (not self.scatters or self.exchange_flaws())

    cpdef take_effect(self):
        """The call has succeeded."""
        cdef double nbytes = self.arrays.forms.nbytes
        if self.recalled is not None:
            self.keep_learned()
        self.spent.wait, self.spent.total = self.waited, now() - self.began
        self.spent.dense_bytes = self.known.vectors * nbytes
        self.allreduce.memory.commit(self.states)
        self.allreduce.stats.record(self.spent, self.norm)

    cdef bint _run_alone(self) except -1:
        """On a single rank."""
        self.event = self.operation.run_alone(self.within)
        return self.event is None and self.operation.data.done and not self.operation.data.first_flaw().known

    cpdef bint run_with_others(self, running, int lane) except -1:
        """The operation or an exchange."""
        cdef Numbers numbers = self.link.numbers
        cdef double until = numbers.previous + self.allreduce.timeout
        tag = numbers.tag(self.number, lane, self.known.signature)
        done, waited = self.link.progress.run_at_once(running, self.number, tag, until)
        self.waited += waited
        return done


def repeated(allreduce, buf, key, out, half, Arrays looked, kind, not_begun, double within):
    """The result of a call, or `not_begun` if that is not so. kind: what a Repeat is made as."""
    if not allreduce.repeats or not c_float_control_is_usual():
        return not_begun
    cdef double began = now()
    cdef Home home = allreduce.home
    cdef Claim claim = home.claim()
    cdef Repeat made
    claim.released = True
    try:
        try:
            link = home.free_link(allreduce.timeout, within, allreduce)
        except BaseException as error:
            kind.refuse(allreduce, key, error)
        if link is None or allreduce.unusable is not None or allreduce.unheard:
            return not_begun
        made = kind(allreduce, link, began, half, within)
        return made.result(buf, key, out, looked, not_begun)
    finally:
        try:
            home.release(claim)
        finally:
            home.claims.release(claim)
