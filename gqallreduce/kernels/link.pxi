"""What every call asks of its Link (transport/link.py); numbers of the calls on one, their tags, and whose they are."""


cdef class Numbers:
    """Of the calls that have begun.

    calls
        how many.
    began, previous
        when the last one began, and the one before it; seconds of time.perf_counter.
    signatures
        so many differ in the tags of calls.
    """

    cdef public int64_t calls
    cdef readonly double began, previous
    cdef uint64_t together, lanes
    cdef readonly uint64_t signatures
    cdef list owners  # weak references, or None, of the last calls

    def __init__(self, uint64_t together, uint64_t lanes, uint64_t signatures):
        """So many calls that follow each other, lanes of each, and signatures differ in their tags."""
        self.together, self.lanes, self.signatures = together, lanes, signatures
        self.owners = [None] * <Py_ssize_t> together
        self.began = self.previous = now()

    cpdef int count(self, owner) except -1:
        """A call of an object, or of none, begins now: its number is that of `calls` before."""
        self.owners[<uint64_t> self.calls % self.together] = None if owner is None else PyWeakref_NewRef(owner, None)
        self.previous, self.began = self.began, now()
        self.calls += 1
        return 0

    cpdef int64_t tag(self, int64_t number, int lane, uint64_t signature):
        """The tag of a lane of a call: above the call's number, as much of the signature as fits."""
        return (signature % self.signatures * self.together + <uint64_t> number % self.together) * self.lanes + lane

    def owner(self, int64_t number):
        """The object whose call it is; None if that is gone, or forgotten."""
        reference = self.owners[<uint64_t> number % self.together]
        return None if reference is None else reference()

    def forget_owner(self, int64_t number):
        self.owners[<uint64_t> number % self.together] = None


cdef class Link:
    """Of one rank among so many.

    numbers
        those of the calls on it: how many have begun, and when.
    at_once
        the object whose call is carried out at once (repeat.pxi), or None.
    broken
        a call on it was given up half-way, here or elsewhere.
    progress
        the engine that advances the calls under way.
    """

    cdef readonly int rank, size
    cdef readonly Numbers numbers
    cdef public object at_once
    cdef public bint broken
    cdef public Progress progress

    def __init__(self, int rank, int size, Numbers numbers not None):
        self.rank, self.size, self.numbers = rank, size, numbers

    @property
    def calls(self):
        """How many have begun on it."""
        return self.numbers.calls

    cpdef int count(self, owner) except -1:
        """Count a call of an object, which begins now: its number is that of `calls` before."""
        return self.numbers.count(owner)

    cpdef int64_t tag(self, int64_t number, int lane, uint64_t signature=0):
        """The tag of a lane of a call."""
        return self.numbers.tag(number, lane, signature)
