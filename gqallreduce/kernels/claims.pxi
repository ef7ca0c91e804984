"""Which function makes a call: one at a time, over all threads."""

from cpython.pythread cimport PyThread_get_thread_ident


@cython.no_gc  # it takes itself out of its Claims when it goes
cdef class Claim:
    """Of one function in one thread, for as long as it makes a call, or until nothing refers to it."""

    cdef Claims claims
    cdef readonly unsigned long thread

    def __dealloc__(self):
        if self.claims is not None and self.claims.latest == <void*> self:
            self.claims.latest = NULL


cdef class Claims:
    """Those of one communicator: at most one holds at a time."""

    cdef void* latest  # the Claim that holds, or NULL

    def take(self, Claim over=None):
        """(A Claim that holds from now on, None), or (None, that which holds). `over`: a Claim that does not count any
        more."""
        cdef Claim made
        if self.latest != NULL and self.latest != <void*> over:
            return None, <Claim> self.latest
        made = Claim.__new__(Claim)
        made.claims, made.thread = self, PyThread_get_thread_ident()
        self.latest = <void*> made
        return made, None

    def holds(self, Claim claim not None):
        return self.latest == <void*> claim

    def release(self, Claim claim not None):
        """It holds no longer, if it did."""
        if self.latest == <void*> claim:
            self.latest = NULL
