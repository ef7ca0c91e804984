"""Scales that all ranks of a call share: the largest of their own, which they agree on before they encode."""


cdef class SharedScales:
    """Of a Plan whose codec has them (runtime/scales.py).

    lane
        of the exchange, in tags.
    """

    cdef readonly int lane
    cdef double clip, most
    cdef bint rotated
    cdef int steps
    cdef vector[size_t] order
    cdef Coder coder

    def __init__(self, int lane, double clip, bint rotated, int steps, double most, vector[size_t] order,
                 Coder coder not None):
        """clip, rotated, steps, most: a SharedScale (coding/codec.py); order: tensors, as ranks tell each other their
        scales; coder: the codec with any unit."""
        require_steps(steps)
        if order.empty():
            raise ValueError("got no tensors")
        self.lane, self.clip, self.rotated, self.steps, self.most = lane, clip, rotated, steps, most
        self.order, self.coder = order, coder

    cpdef own(self, NativeOperation running):
        """This rank's, of each tensor in order: float64, 0 if a value is not finite, which the encoding reports."""
        cdef vector[float] found
        cdef size_t at
        with nogil:
            found = running.data.own_scales(self.clip, self.rotated)
        require("tensors in order", self.order.size(), found.size())
        scales = np.empty(found.size(), np.float64)
        cdef double[::1] view = scales
        for at in range(found.size()):
            view[at] = found.at(self.order[at])
            if not view[at] <= FLT_MAX:
                view[at] = 0
        return scales

    cpdef Coder take(self, NativeOperation running, const double[::1] scales):
        """Give an operation what ranks have agreed on: the Coder whose units follow. WireError for what is no scale."""
        cdef size_t at
        cdef Coder made = Coder.__new__(Coder)
        require_scales(scales)
        require("scales", scales.shape[0], self.order.size())
        made.data = self.coder.data
        made.units.resize(self.order.size())
        for at in range(self.order.size()):
            made.units[self.order.at(at)] = unit_of_scale(scales[at], self.steps, self.most)
        made.data.options.units, made.data.options.n_units = made.units.data(), made.units.size()
        running.take_coder(made)
        return made
