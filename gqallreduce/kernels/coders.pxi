"""Codecs as the runtime calls them: functions, with their options."""


cdef class Coder:
    """How regions are encoded and decoded; made by the functions below."""

    cdef CCoder data
    cdef vector[float] units
    cdef Coder inner  # of the values of a sparse codec

    @property
    def selects(self):
        """Are the values that are sent chosen within a whole tensor, or piece?"""
        return self.data.options.selects == Selects.kLargest

    @property
    def unit(self):
        """Of a codec with integer sums: a float, or a float32 array of one per segment."""
        cdef size_t at
        if self.units.size() == 1:
            return <double> self.units[0]
        return np.array([self.units[at] for at in range(self.units.size())], np.float32)

    def __init__(self):
        raise TypeError("a Coder is made by a function such as levels_coder")


cdef Coder new_coder(Family family):
    cdef Coder coder = Coder.__new__(Coder)
    coder.data = coder_of(family)
    return coder


def levels_coder(Levels levels not None, bint l2, str coding="fixed"):
    """Of a level codec; `coding` as levels_encode ("fixed") or coded_encode has it."""
    cdef Coder coder = new_coder(Family.kLevels if coding == "fixed" else Family.kCodedLevels)
    coder.data.options.levels = levels.data
    coder.data.options.l2 = l2
    if coding != "fixed":
        coder.data.options.coding = coding_of(coding)
    return coder


def eden_coder(int bits, bint contracted):
    if not 1 <= bits <= 4:
        raise ValueError(f"bits: got {bits}, expected 1 to 4")
    cdef Coder coder = new_coder(Family.kEden)
    coder.data.options.bits = bits
    coder.data.options.contracted = contracted
    return coder


def onebit_coder():
    return new_coder(Family.kOneBit)


def plain_coder(int format):
    if format not in (0, 1, 3):
        raise ValueError(f"format: got {format}, expected 0 (float16), 1 (bfloat16) or 3 (float32)")
    cdef Coder coder = new_coder(Family.kPlain)
    coder.data.options.format = format
    return coder


def wide_coder():
    """Of float64 as it is."""
    return new_coder(Family.kWide)


def adaptive_coder(size_t pi, bint separate, bint of_columns, bint golomb):
    """`of_columns`: are the largest values of each column sent? golomb: are entries written as Golomb-Rice codes?"""
    require_proportion(pi)
    cdef Coder coder = new_coder(Family.kAdaptive)
    coder.data.options.pi = pi
    coder.data.options.separate = separate
    coder.data.options.golomb = golomb
    coder.data.options.selects = Selects.kOfColumns if of_columns else Selects.kLargest
    return coder


def sparse_coder(size_t k, double ratio, bint unions, Coder values, uint64_t bucket):
    """Of chosen values, k of a whole vector, or by the ratio if k is 0; unions: are sums kept exactly?

    values
        what encodes them, in buckets of so many; None for float32.
    """
    cdef Coder coder = new_coder(Family.kUnion if unions else Family.kSparse)
    coder.data.options.k = k
    coder.data.options.ratio = ratio
    coder.inner = values
    coder.data.options.values = &values.data if values is not None else NULL
    coder.data.options.bucket = bucket
    coder.data.options.selects = Selects.kLargest
    return coder


cdef int set_units(Coder coder, units, uint32_t terms) except -1:
    cdef float unit
    if type(units) is float:
        coder.units.push_back(units)
    else:
        for unit in np.atleast_1d(np.asarray(units, np.float32)):
            coder.units.push_back(unit)
    coder.data.options.units, coder.data.options.n_units = coder.units.data(), coder.units.size()
    coder.data.options.terms = require_terms(terms)
    return 0


def integers_coder(units, bint ternary, uint32_t terms):
    """Of whole multiples of a unit that all ranks share, a float or an array of one per segment; sums exactly."""
    cdef Coder coder = new_coder(Family.kIntegers)
    set_units(coder, units, terms)
    coder.data.options.ternary = ternary
    return coder


def ternary_coder(double clip):
    """Of -1, 0 and 1 times a unit of each message, at most `clip` times the root mean square; 0: no limit."""
    if not clip >= 0:
        raise ValueError(f"clip: got {clip}, expected a number of 0 or more")
    cdef Coder coder = new_coder(Family.kTernary)
    coder.data.options.clip = clip
    return coder


def multiples_coder(units, int steps, bint rotated, uint32_t terms):
    """The same of multiples up to `steps`, of rotated buckets or not."""
    cdef Coder coder = new_coder(Family.kMultiples)
    set_units(coder, units, terms)
    require_steps(steps)
    coder.data.options.steps, coder.data.options.rotated = steps, rotated
    return coder
