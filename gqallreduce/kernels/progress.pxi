"""What every call asks of the progress engine of its communicator (transport/progress.py)."""


cdef class Progress:
    """Made with the Engine of the runtime in C++, or None.

    calls
        those under way.
    handed_over
        since `hand_over`, until `take_back`.
    since, looked
        when waiting began, or something came; when `test` has looked last, or the first call under way began.
    """

    cdef readonly Engine engine
    cdef public list calls
    cdef public bint handed_over
    cdef public double since, looked

    def __init__(self, Engine engine):
        self.engine, self.calls = engine, []
        self.since = self.looked = now()

    cpdef run_at_once(self, running, uint64_t number, int tag, double most, double until):
        """Where nothing else is under way: what the runtime in C++ does of a call's Stage in about `most` seconds.

        Returns whether it is done, before `until` and without an event or a flaw, else it goes on by `take_up`; and the
        seconds of waiting.
        """
        cdef c_bool received = False
        cdef double waited = 0
        self.since = self.looked = now()
        cdef bint done = self.engine.run_only(running, number, tag, most, until, waited, received)
        if received and not done:
            self.since = now()
        return done, waited
