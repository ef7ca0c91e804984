"""Plain NumPy arrays of forms that were seen before: known again, and found in memory, all at once."""

from cpython.object cimport PyObject


cdef extern from *:
    """
    // The head of every array of NumPy, as its C interface has it in all versions (PyArrayObject_fields).
    typedef struct {
      PyObject_HEAD
      char* data;
      int nd;
      Py_ssize_t *dimensions, *strides;
      PyObject *base, *descr;
      int flags;
    } GqArrayHead;
    """
    ctypedef struct ArrayHead "GqArrayHead":
        char* data
        int nd, flags
        Py_ssize_t* dimensions
        Py_ssize_t* strides
        PyObject* descr

cdef int WRITABLE = 0x0400  # of flags
cdef object PLAIN = np.ndarray
cdef dict PLAIN_DTYPES = {name: np.dtype(name) for name in ("float16", "float32", "float64")}


def heads_are_as_expected():
    """Is what NumPy says of some arrays found in their heads? If not, arrays are looked at by the buffer protocol."""
    if PLAIN.__basicsize__ < <Py_ssize_t> sizeof(ArrayHead):
        return False
    locked = np.zeros(3)
    locked.flags.writeable = False
    apart, reverse = np.zeros((2, 3, 4), np.float32)[:, ::2], np.zeros((5, 6), np.float16, order="F")
    for array in (apart, reverse, np.zeros(()), locked):
        if not head_is_as_expected(array):
            return False
    return True


cdef bint head_is_as_expected(array) except -1:
    cdef ArrayHead* head = <ArrayHead*> <PyObject*> array
    if (head.nd != array.ndim or <size_t> head.data != array.__array_interface__["data"][0]
            or head.descr != <PyObject*> array.dtype or bool(head.flags & WRITABLE) != array.flags.writeable):
        return False
    return all([head.dimensions[axis] == array.shape[axis] and head.strides[axis] == array.strides[axis]
                for axis in range(array.ndim)])


cdef bint HEADS = heads_are_as_expected()


def look_by_heads(bint may):
    """For tests: False to look at arrays by the buffer protocol."""
    global HEADS
    HEADS = may and heads_are_as_expected()


cdef class Places:
    """Where some arrays are among more."""

    cdef vector[Py_ssize_t] places

    def __init__(self, tuple places not None):
        self.places = places

    cdef tuple pick(self, tuple every):
        """Those at these places; None if there are too few."""
        cdef Py_ssize_t place
        cdef list found = []
        for place in self.places:
            if place < 0 or place >= len(every):
                return None
            found.append(every[place])
        return tuple(found)


cdef class KnownForms:
    """Of a key, or of the keys of a group: what plain arrays of these forms look like.

    forms
        the Form (layout.py) of each.
    group
        is a list of arrays expected?
    nbytes
        of all.
    """

    cdef readonly tuple forms
    cdef readonly bint group
    cdef readonly size_t nbytes
    cdef bint plain  # can any array be known again by these?
    cdef list dtypes
    cdef vector[PyObject*] descrs  # the same
    cdef vector[vector[Py_ssize_t]] extents, strides
    cdef vector[size_t] nbytes_of

    def __cinit__(self, tuple forms not None, bint group):
        self.forms, self.group, self.plain, self.dtypes = forms, group, True, []
        for shape, order, dtype, factors, _ in forms:
            known = PLAIN_DTYPES.get(dtype)
            if known is None or order not in ("C", "F") or factors is not None:
                self.plain = False
                return
            self._add(shape, order == "F", known)

    cdef int _add(self, tuple shape, bint reverse, dtype) except -1:
        cdef vector[Py_ssize_t] extents = shape, strides
        cdef Py_ssize_t step = dtype.itemsize
        cdef size_t axis, at
        strides.resize(extents.size())
        for axis in range(extents.size()):
            at = axis if reverse else extents.size() - 1 - axis
            strides[at] = step
            step *= extents[at]
        self.dtypes.append(dtype)
        self.descrs.push_back(<PyObject*> dtype)
        self.extents.push_back(extents)
        self.strides.push_back(strides)
        self.nbytes_of.push_back(step)
        self.nbytes += step
        return 0

    cpdef Arrays look(self, buf, Places places=None):
        """The Arrays that `buf` is, an array or a list, or those at these places of it; None if Python must look.

        None for what is not plain, has another form or strides, is read-only, or shares memory with another.
        """
        if not self.plain:
            return None
        cdef Arrays made = Arrays.__new__(Arrays)
        cdef size_t number
        if not self.group:
            made.owners = (buf,)
        elif type(buf) is list or type(buf) is tuple:
            made.owners = tuple(buf) if places is None else places.pick(tuple(buf))
        else:
            return None
        if made.owners is None or len(made.owners) != len(self.forms):
            return None
        made.forms = self
        made.data.reserve(self.extents.size())
        made.bounds.reserve(self.extents.size())
        for number in range(self.extents.size()):
            if not self._take(made.owners[number], number, made):
                return None
        return made if meet_nowhere(made.bounds) else None

    cdef bint _take(self, array, size_t number, Arrays made) except -1:
        """Add one array; is it of its form?"""
        cdef size_t begin
        if type(array) is not PLAIN:
            return False
        if not (self._head_fits(array, number, &begin) if HEADS else self._view_fits(array, number, &begin)):
            return False
        made.data.push_back(<uint8_t*> begin)
        if self.nbytes_of[number]:
            made.bounds.push_back(pair[size_t, size_t](begin, begin + self.nbytes_of[number]))
        return True

    cdef bint _head_fits(self, array, size_t number, size_t* begin) noexcept:
        cdef ArrayHead* head = <ArrayHead*> <PyObject*> array
        begin[0] = <size_t> head.data
        return (head.descr == self.descrs[number] and head.flags & WRITABLE
                and self._has_axes(number, head.nd, head.dimensions, head.strides))

    cdef bint _view_fits(self, array, size_t number, size_t* begin) except -1:
        cdef Py_buffer view
        if <PyObject*> array.dtype != self.descrs[number]:
            return False
        PyObject_GetBuffer(array, &view, PyBUF_STRIDES)
        cdef bint fits = not view.readonly and self._has_axes(number, view.ndim, view.shape, view.strides)
        begin[0] = <size_t> view.buf
        PyBuffer_Release(&view)
        return fits

    cdef bint _has_axes(self, size_t number, size_t count, Py_ssize_t* extents, Py_ssize_t* strides) noexcept:
        """Strides of axes with a single place may be anything, and so may all of an array without elements."""
        cdef size_t axis
        cdef const Py_ssize_t* wanted = self.extents[number].data()
        cdef const Py_ssize_t* steps = self.strides[number].data()
        if count != self.extents[number].size():
            return False
        for axis in range(count):
            if extents[axis] != wanted[axis]:
                return False
            if strides[axis] != steps[axis] and extents[axis] > 1 and self.nbytes_of[number]:
                return False
        return True


@cython.freelist(64)
cdef class Arrays:
    """Plain arrays without gaps, of known forms, that share no memory.

    owners
        the arrays. A caller may give them another shape meanwhile; what is kept here is their memory.
    """

    cdef readonly KnownForms forms
    cdef readonly tuple owners
    cdef vector[uint8_t*] data
    cdef vector[pair[size_t, size_t]] bounds  # of those that have elements, in the order of their addresses

    def vector(self, size_t number):
        """The memory of one, as a vector."""
        dtype, nbytes = self.forms.dtypes[number], self.forms.nbytes_of[number]
        found = self.owners[number].reshape(-1, order=self.forms.forms[number].order)
        cdef pair[size_t, size_t] at
        find_bounds(found, &at)
        if found.dtype is dtype and at.first == <size_t> self.data[number] and at.second - at.first == nbytes:
            return found  # as it is unless the caller has given it another shape or dtype meanwhile
        return np.asarray(Memory(self.owners[number], {
            "data": (<size_t> self.data[number], False), "typestr": dtype.str, "version": 3,
            "shape": (nbytes // dtype.itemsize,),
        }))

    def meet(self, Arrays other not None):
        """Do any of the two share memory?"""
        cdef size_t one = 0, two = 0
        while one < self.bounds.size() and two < other.bounds.size():
            if self.bounds[one].second <= other.bounds[two].first:
                one += 1
            elif other.bounds[two].second <= self.bounds[one].first:
                two += 1
            else:
                return True
        return False


def share_no_memory(list every not None):
    """Do no two arrays of all these Arrays overlap? In one pass over them, not pair by pair."""
    cdef vector[pair[size_t, size_t]] bounds
    cdef Arrays arrays
    if len(every) < 2:
        return True
    for arrays in every:
        bounds.insert(bounds.end(), arrays.bounds.begin(), arrays.bounds.end())
    return meet_nowhere(bounds)


def values_in_order(named not None, tuple names not None):
    """The values of a dict, or of a list of pairs, whose names are these, in this order; None if they are not."""
    cdef tuple found
    cdef Py_ssize_t number = 0
    if len(named) != len(names):
        return None
    if type(named) is list:
        if not are_pairs(named):
            return None
        found = tuple([(<tuple> pair)[1] for pair in <list> named])
        for pair in <list> named:
            if not is_same((<tuple> pair)[0], names[number]):
                return None
            number += 1
        return found
    for name in <dict?> named:
        if not is_same(name, names[number]):
            return None
        number += 1
    return tuple(named.values())


cdef bint is_same(one, other) except -1:
    return one is other or one == other


def are_pairs(list every not None):
    """Are all of them tuples of two?"""
    for each in every:
        if type(each) is not tuple or len(<tuple> each) != 2:
            return False
    return True


cpdef tuple plain_keys(keys):
    """The tuple of a list or tuple of plain strings; None if it is anything else."""
    if type(keys) is not list and type(keys) is not tuple:
        return None
    cdef tuple found = tuple(keys)
    for key in found:
        if type(key) is not str:
            return None
    return found


class Memory:
    """Memory that NumPy shows as an array; the owner lives as long."""

    def __init__(self, owner, interface):
        self.owner, self.__array_interface__ = owner, interface
