"""What is kept of a key from call to call: its State, and the one that a call leads to."""

from cpython.weakref cimport PyWeakref_NewRef


@cython.freelist(512)
@cython.no_gc  # nothing that it holds refers to a State
cdef class State:
    """Of one key after one call; never changed.

    form
        (shape, order, dtype) of its buffers; None for the key None, which is bound to no form.
    step
        how many calls for the key have succeeded.
    residual
        float32, in memory order of the buffer, in units of the sum; None without feedback.
    spare
        the array that the next State's residual will lie in.
    processor
        in whose memory the two lie.
    halfway
        was the last call a reduce-scatter, whose step an allgather goes on with?
    learned
        of its codec (preparing.py): name -> array or plain value, never changed; None if it learns nothing.
    norm
        a weak reference to the Norm of the call.
    spare_norm
        one to the Norm of the call that what still lies in `spare` is of.
    """

    cdef readonly object form, learned, residual, spare, processor, norm, spare_norm
    cdef readonly uint64_t step
    cdef readonly bint halfway
    cdef float* residual_at  # NULL for an array that is not on the host
    cdef float* spare_at

    def __init__(self, form, step=0, learned=None, residual=None, spare=None, processor=None, norm=None,
                 spare_norm=None, halfway=False):
        self.form, self.step, self.learned, self.residual, self.spare = form, step, learned, residual, spare
        self.processor, self.norm, self.spare_norm, self.halfway = processor, norm, spare_norm, halfway
        self.residual_at = floats_on_host(residual)
        self.spare_at = floats_on_host(spare)

    def replaced(self, **changes):
        """The same with other values of some fields."""
        names = "form", "step", "learned", "residual", "spare", "processor", "norm", "spare_norm", "halfway"
        return State(**{**{name: getattr(self, name) for name in names}, **changes})

    cdef State copied(self):
        cdef State made = State.__new__(State)
        made.form, made.step, made.learned, made.processor, made.norm = (
            self.form, self.step, self.learned, self.processor, self.norm)
        made.residual, made.spare, made.spare_norm = self.residual, self.spare, self.spare_norm
        made.residual_at, made.spare_at, made.halfway = self.residual_at, self.spare_at, self.halfway
        return made

    cpdef State halved(self):
        """The State after a reduce-scatter instead of a whole call."""
        cdef State made = self.copied()
        made.halfway = True
        return made

    cpdef State at_step(self, uint64_t step):
        """The same, but after so many calls."""
        cdef State made = self.copied()
        made.step = step
        return made

    cpdef State knowing(self, learned):
        """The same, of a codec that has learned this."""
        cdef State made = self.copied()
        made.learned = learned
        return made

    cpdef State after(self, norm):
        """The State after one more call, whose residual will lie in `spare`."""
        compute_norm(self.spare_norm)
        return self.following(norm)

    cdef State following(self, norm):
        """The same; the Norm of what lies in `spare` has been computed."""
        cdef State made = State.__new__(State)
        made.form, made.step, made.learned, made.processor, made.norm = (
            self.form, self.step + 1, self.learned, self.processor, norm)
        made.residual, made.spare, made.spare_norm = self.spare, self.residual, self.norm
        made.residual_at, made.spare_at = self.spare_at, self.residual_at
        return made


cdef class NormOfStates:
    """What is kept of the norm of the residuals that a call leaves (memory.py): the States, by key, then the value."""

    cdef object __weakref__
    cdef public object states, value


cdef int compute_norm(norm) except -1:
    """A Norm, by its weak reference, before the arrays that it is of are written."""
    kept = None if norm is None else norm()
    if kept is not None:
        kept()
    return 0


cdef float* floats_of(vector) except? NULL:
    cdef CArray found
    look_at(vector, &found)
    return <float*> found.data


cdef float* floats_on_host(vector) except? NULL:
    return floats_of(vector) if isinstance(vector, np.ndarray) else NULL
