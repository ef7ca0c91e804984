"""What is known of a name (a key, or the keys of a group) and its forms (runtime/plans.py, runtime/trials.py)."""


cdef class Trials:
    """What `auto/` has chosen.

    chosen, reason
        None and "" before that.
    left
        so many calls from now on run it without an agreement.
    repeated
        for which time such a call is noted; None if it is no try.
    """

    cdef public str chosen, reason
    cdef public int64_t left
    cdef public tuple repeated

    def __init__(self):
        self.reason = ""

    cpdef bint keeps(self, str choice):
        """Does the next call run this, without an agreement?"""
        return self.left > 0 and choice == self.chosen

    def keep(self, str choice not None, str reason not None, int64_t calls):
        """From now on, for so many calls."""
        self.chosen, self.reason, self.left = choice, reason, calls

    cpdef tuple go_on(self):
        """A call runs what was chosen: (choice, why). It counts, unless it fails: `take_back`."""
        self.left -= 1
        return self.chosen, self.reason

    def take_back(self):
        """A call that has gone on failed, so that it does not count: not every rank may have begun it."""
        self.left += 1


cdef class Agreed:
    """What ranks have agreed on (plans.py).

    kept
        what each key's buffers have in common from now on; None for the key None.
    known
        by which plain arrays are known again; None before a call has succeeded.
    plan
        the one that was used last.
    again
        what all calls on it have alike; None before one is made again.
    trials
        what `auto/` has measured, if it does.
    """

    cdef readonly object name
    cdef readonly str choice
    cdef readonly tuple keys, form, hashes, kept
    cdef readonly object streams
    cdef readonly uint64_t signature
    cdef public str what, why
    cdef public bint dense, by_mpi
    cdef public KnownForms known
    cdef public object plan
    cdef public KnownCall again
    cdef public Trials trials

    def __init__(self, name, tuple keys not None, str what not None, str why not None, uint64_t signature, streams,
                 tuple form not None, tuple hashes not None, tuple kept not None):
        self.name, self.keys, self.what, self.why, self.signature = name, keys, what, why, signature
        self.streams, self.form, self.hashes, self.kept, self.choice = streams, form, hashes, kept, form[0]


cdef class KnownCall:
    """What the calls of a key, or of a group, on one Plan have alike.

    plan, processor
        the Plan, and whose it is.
    scales
        that ranks share; None if they share none.
    carriers
        makes what carries such a call out, where that is not one operation of the runtime (runtime/repeated_dense.py,
        runtime/repeated_stages.py); else None.
    parts
        of halves of an allreduce without `counts`: this rank's part of each buffer; else None.
    """

    cdef readonly object plan, processor, carriers
    cdef readonly SharedScales scales
    cdef public tuple parts
    cdef bint measures, feeds_back, selects, recalls, compares
    cdef double vectors
    cdef size_t exchanged
    cdef uint64_t signature
    cdef vector[uint64_t] streams
    cdef Program program
    cdef Pool pool

    def __init__(self, Agreed agreed not None, bint measures, bint feeds_back, double vectors, size_t exchanged,
                 carriers=None, processor=None, bint compares=False):
        """agreed: what runs (plans.py); measures: does `auto/`? feeds_back: has the scheme error feedback? vectors: how
        many times what is summed dense sums would send; exchanged: bytes of the longest message of exchanges before and
        after; compares: do ranks compare each of the calls?"""
        self.vectors, self.exchanged = vectors, exchanged
        self.plan, self.measures, self.feeds_back = agreed.plan, measures, feeds_back
        self.carriers, self.compares, self.processor, self.signature = carriers, compares, processor, agreed.signature
        if carriers is not None:
            return
        self.selects, self.scales = self.plan.selects_own, self.plan.scales
        self.recalls, self.processor = self.plan.recalls, self.plan.processor
        self.streams = agreed.streams
        self.program, self.pool = self.plan.native, self.processor.pool


cdef class Plans:
    """What runs for each name.

    latest
        of each name, as what the last call that succeeded ran: an Agreed.
    """

    cdef readonly dict latest

    def __init__(self):
        self.latest = {}

    cpdef Agreed last(self, key):
        """As what the last call of a key, or of a list of keys, ran; None for other than plain strings and None."""
        if key is not None and type(key) is not str:
            key = plain_keys(key)
            if not key:
                return None
        return self.latest.get(key)


cdef Arrays known_source(Agreed agreed, buf, KeptStates memory, Arrays looked):
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


def known_arrays(Agreed agreed not None, buf, out, KeptStates memory not None, Arrays looked):
    """(source, target or None for an in-place call) as Arrays, of a call like the last one; None for any other."""
    cdef Arrays source = known_source(agreed, buf, memory, looked), into = None
    if source is None:
        return None
    if out is not None:
        into = known_target(source, out)
    return None if out is not None and into is None else (source, into)
