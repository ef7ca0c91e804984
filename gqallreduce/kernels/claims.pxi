"""Which function makes a call: one at a time, over all threads."""

from cpython.pythread cimport PyThread_get_thread_ident

from gqallreduce.errors import Error

# Raised by calls of this package, where those that are under way go on or have been given up.
EXPECTED = (Error, ValueError, TypeError)


@cython.freelist(8)
@cython.no_gc  # it takes itself out of its Claims when it goes
cdef class Claim:
    """Of one function in one thread, for as long as it makes a call, or until nothing refers to it.

    released
        does its function release it in any case? It is compiled, so no interrupt comes between.
    """

    cdef Claims claims
    cdef readonly unsigned long thread
    cdef readonly bint released

    def __dealloc__(self):
        if self.claims is not None and self.claims.latest == <void*> self:
            self.claims.latest = NULL


cdef class Claims:
    """Those of one communicator: at most one holds at a time.

    closed
        may no function here make a call any more?
    """

    cdef void* latest  # the Claim that holds, or NULL
    cdef public bint closed

    def take(self, Claim over=None):
        """(A Claim that holds from now on, None), or (None, that which holds). `over`: a Claim that does not count any
        more."""
        if self.latest != NULL and self.latest != <void*> over:
            return None, <Claim> self.latest
        return self.made(), None

    cdef Claim made(self):
        cdef Claim made = Claim.__new__(Claim)
        made.claims, made.thread = self, PyThread_get_thread_ident()
        self.latest = <void*> made
        return made

    cpdef bint holds(self, Claim claim):
        return self.latest == <void*> claim

    cpdef release(self, Claim claim):
        """It holds no longer, if it did."""
        if self.latest == <void*> claim:
            self.latest = NULL


cdef class Home:
    """What every call asks of its communicator's Home (transport/home.py).

    link, control
        the Link and the Control; None before they are made.
    unclaimed
        calls with a request that no one has waited for yet, until they are done or it is dropped.
    freed
        has the user freed the communicator?
    noticed
        when `notice` has looked last.
    """

    cdef public Link link
    cdef public object control
    cdef readonly list unclaimed
    cdef public bint freed
    cdef public double noticed
    cdef readonly Claims claims

    def __init__(self):
        self.unclaimed, self.claims = [], Claims()

    cpdef Claim claim(self):
        """Error if a call is being made on this communicator. The claim ends with `release`.

        The caller keeps it in a variable `claim`. One that an exception kept from being released is over when its
        function is: it may still be referenced by the exception.
        """
        cdef Claim made
        if self.claims.latest == NULL and not self.claims.closed:
            made = self.claims.made()
        else:
            made = self.claim_after_others()
        if self.link is not None and self.link.progress.handed_over:
            self.link.progress.take_back()
        return made

    cpdef release(self, Claim claim):
        if not self.claims.holds(claim):
            return
        if self.link is not None and self.link.progress.calls:
            self.link.progress.hand_over()
        self.claims.release(claim)

    cdef int withdraw(self, error) except -1:
        """An error leaves a call here, and the caller may change its buffers. If calls are under way that were not
        given up, since an interrupt came between, others must not read these any more, and the link cannot be used.

        All in compiled code, so that no other interrupt comes between.
        """
        cdef Progress progress
        if self.link is None or isinstance(error, EXPECTED):
            return 0
        progress = self.link.progress
        if progress.engine is None or not progress.engine.operations:
            return 0
        progress.engine.withdraw()
        progress.handed_over = False
        self.link.broken = True
        return 0

    cdef Link free_link(self, double timeout, double within, caller):
        """The Link if it is sound and idle and nothing is unclaimed; else None. Calls `notice`, which may raise."""
        cdef Link link = self.link
        if link is None or self.unclaimed or link.broken or link.progress.calls:
            return None
        if self.control is not None and now() - self.noticed >= within:
            self.notice(timeout, within, caller)
        return None if link.broken else link
