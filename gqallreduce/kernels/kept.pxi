"""What is kept between calls: the States of keys that are called alone, and those of groups in one piece each."""

from cpython.dict cimport PyDict_Update


@cython.no_gc  # nothing that it holds refers to one
cdef class Residuals:
    """Arrays of a group, of each key one."""

    cdef tuple arrays
    cdef vector[float*] at  # NULL for arrays that are not on the host

    def __init__(self, tuple arrays not None):
        self.arrays = arrays
        for array in arrays:
            self.at.push_back(floats_on_host(array))


cdef class GroupStates:
    """The States of the keys of a group after a call of it, by key; never changed. Each is made when it is looked at.

    names, forms, processor, norm
        as of States: the keys, of each its form, and what all have alike.
    """

    cdef readonly tuple names, forms
    cdef readonly object processor, norm
    cdef dict places  # key -> number
    cdef vector[uint64_t] steps
    cdef Residuals residuals, spares  # None without feedback
    cdef tuple spare_norms  # of each key, or one of all
    cdef list made  # State, or None

    @staticmethod
    cdef GroupStates of(tuple names, tuple forms, list values):
        """The same as States after a call of them all; None if they are not alike enough."""
        cdef State state, first = values[0] if len(values) > 1 else None
        cdef GroupStates made = GroupStates.__new__(GroupStates)
        if first is None:
            return None
        for state in values:
            if (state.learned is not None or state.halfway or state.norm is not first.norm
                    or state.processor is not first.processor or (state.residual is None) != (state.processor is None)):
                return None
            made.steps.push_back(state.step)
        made.names, made.forms, made.processor, made.norm = names, forms, first.processor, first.norm
        made.places = {name: number for number, name in enumerate(names)}
        made.spare_norms = tuple([state.spare_norm for state in values])
        if made.processor is not None:
            made.residuals = Residuals(tuple([state.residual for state in values]))
            made.spares = Residuals(tuple([state.spare for state in values]))
        made.made = values
        return made

    cdef GroupStates after(self, norm):
        """Those after one more call, as `State.after` makes them."""
        cdef GroupStates made = GroupStates.__new__(GroupStates)
        cdef size_t number
        computed = None
        for each in self.spare_norms:
            if each is not computed:
                computed = each
                compute_norm(each)
        made.names, made.forms, made.places, made.processor = self.names, self.forms, self.places, self.processor
        made.norm, made.spare_norms = norm, (self.norm,)
        made.residuals, made.spares = self.spares, self.residuals
        made.steps = self.steps
        for number in range(made.steps.size()):
            made.steps[number] += 1
        return made

    def __len__(self):
        return len(self.names)

    def __iter__(self):
        return iter(self.names)

    def __getitem__(self, key):
        return self.state(self.places[key])

    def values(self):
        return [self.state(number) for number in range(len(self.names))]

    def items(self):
        return zip(self.names, self.values())

    cdef State state(self, Py_ssize_t number):
        """The same State each time."""
        cdef State made
        if self.made is None:
            self.made = [None] * len(self.names)
        made = self.made[number]
        if made is None:
            made = self.made[number] = State.__new__(State)
            made.form, made.step, made.processor, made.norm = (
                self.forms[number], self.steps[number], self.processor, self.norm)
            made.spare_norm = self.spare_norms[number if len(self.spare_norms) > 1 else 0]
            if self.residuals is not None:
                made.residual, made.spare = self.residuals.arrays[number], self.spares.arrays[number]
                made.residual_at, made.spare_at = self.residuals.at[number], self.spares.at[number]
        return made

    cdef bint is_of(self, tuple forms):
        """Are its keys bound to these forms?"""
        return self.forms is forms or self.forms == forms

    cdef uint64_t steps_before(self):
        cdef uint64_t found = 0
        cdef size_t number
        for number in range(self.steps.size()):
            found += self.steps[number] - 1
        return found


cdef class Kept:
    """States by key. Every change is one call of C that takes effect at its end: an interrupt comes before or after it,
    and if there is no memory for it nothing has changed."""

    cdef dict alone  # key -> State
    cdef dict groups  # the first key of each -> GroupStates; no key is in two, or in `alone` too

    def __init__(self):
        self.alone, self.groups = {}, {}

    cpdef State get(self, key):
        """None if there is none."""
        cdef GroupStates group
        cdef State found = self.alone.get(key)
        if found is None:
            for group in self.groups.values():
                number = group.places.get(key)
                if number is not None:
                    return group.state(number)
        return found

    cdef GroupStates of_group(self, tuple names):
        """Of a group of these keys in this order; None if they are not kept as one."""
        cdef GroupStates group = self.groups.get(names[0]) if names else None
        return group if group is not None and (group.names is names or group.names == names) else None

    cdef bint meets(self, GroupStates wanted, Kept other):
        """May States of any of these keys be here? They are a group of the other one, whose groups share no keys."""
        cdef GroupStates group, same
        if self.alone:
            return True
        for group in self.groups.values():
            same = other.of_group(group.names)
            if same is None or same is wanted:
                return True
        return False

    def as_dict(self):
        """key -> State."""
        cdef dict found = dict(self.alone)
        for group in self.groups.values():
            found.update(group.items())
        return found

    cpdef put(self, states):
        """A dict or GroupStates: each State in place of that of its key."""
        cdef Kept made
        if isinstance(states, GroupStates) and self.of_group((<GroupStates> states).names) is not None:
            self.groups[(<GroupStates> states).names[0]] = states
        elif type(states) is dict and len(<dict> states) == 1 and not self.groups:
            PyDict_Update(self.alone, states)
        else:
            made = self._copied()
            made._put(states)
            self.alone, self.groups = made.alone, made.groups

    def update(self, Kept other not None):
        """All that another one keeps, in place of what is here."""
        cdef Kept made = self._copied()
        made._put(other.alone)
        for group in other.groups.values():
            made._put(group)
        self.alone, self.groups = made.alone, made.groups

    def forget(self, key):
        cdef Kept made = self._copied()
        made._separate((key,))
        made.alone.pop(key, None)
        self.alone, self.groups = made.alone, made.groups

    cdef Kept _copied(self):
        cdef Kept made = Kept()
        made.alone, made.groups = self.alone.copy(), self.groups.copy()
        return made

    cdef int _put(self, states) except -1:
        cdef GroupStates group
        if not isinstance(states, GroupStates):
            self._separate(states)
            self.alone.update(states)
            return 0
        group = states
        if self.of_group(group.names) is None:
            self._separate(group.names)
            for key in group.names if self.alone else ():
                self.alone.pop(key, None)
        self.groups[group.names[0]] = group
        return 0

    cdef int _separate(self, keys) except -1:
        """No State of these keys is part of a group from now on."""
        cdef GroupStates group
        for group in list(self.groups.values()):
            if not group.places.keys().isdisjoint(keys):
                self.alone.update(group.items())
                del self.groups[group.names[0]]
        return 0

    def holds(self, states):
        """Are these, a dict or GroupStates, what is kept of their keys?"""
        if isinstance(states, GroupStates) and self.of_group((<GroupStates> states).names) is states:
            return True
        return bool(states) and all([self.get(key) is state for key, state in states.items()])

    def norms(self):
        """Weak references to the norms of what lies in all arrays, some of them more than once."""
        cdef list found = []
        cdef GroupStates group
        cdef State state
        for state in self.alone.values():
            found += state.norm, state.spare_norm
        for group in self.groups.values():
            found += group.norm, *group.spare_norms
        return [each for each in found if each is not None]


cdef class KeptStates:
    """The States of all keys (runtime/memory.py).

    kept, kept_in_step
        those that were committed, and those that were in a step that is not over; None outside of one.
    """

    cdef public Kept kept, kept_in_step
    cdef readonly object norm_type, no_norm

    def __init__(self, norm_type not None, no_norm not None):
        """What the norm of a call with feedback is made as; that of calls without."""
        self.kept, self.norm_type, self.no_norm = Kept(), norm_type, no_norm

    cpdef get(self, key):
        """The State of a key, None before its first call has succeeded."""
        newer = self.kept_in_step.get(key) if self.kept_in_step is not None else None
        return self.kept.get(key) if newer is None else newer

    cpdef next(self, tuple keys, tuple forms, processor, bint feedback=True, bint apart=False):
        """The States after a call, by key, and the norm of what it leaves.

        The residual of before lies in `spare` of such a State, `residual` is an array to be written. Without feedback
        both are None. What is returned is not changed; `apart`: it is no more than what other States are made of.
        """
        cdef NormOfStates norm = None
        if feedback:
            norm = self.norm_type()
        states = next_states(keys, forms, self.kept, self.kept_in_step, processor, norm, apart, self)
        if not feedback:
            return states, self.no_norm
        norm.states = states
        return states, norm

    cpdef commit(self, states):
        """The calls have succeeded: all these States replace the old ones, at once."""
        (self.kept if self.kept_in_step is None else self.kept_in_step).put(states)


cdef next_states(tuple keys, tuple forms, Kept committed, Kept staged, processor, norm, bint apart,
                 KeptStates memory):
    """The State after a call of each key, by key: GroupStates, or a dict.

    committed, staged
        the States of before; those of a step that is not over, or None.
    processor, norm
        in whose memory residuals lie; the Norm of the call, None without feedback.
    apart
        a dict in any case: States that are not committed as they are.
    memory
        has next_alone(key, form, processor, norm) -> State, for a key with feedback without two arrays of this
        processor, or of the step under way.
    """
    cdef GroupStates group = committed.of_group(keys)
    if len(keys) != len(forms):
        raise ValueError(f"got {len(keys)} keys, expected {len(forms)}")
    if norm is None:
        processor = None
    else:
        norm = PyWeakref_NewRef(norm, None)
    if (not apart and group is not None and group.processor is processor and group.is_of(forms)
            and (staged is None or not staged.meets(group, committed))):
        return group.after(norm)
    cdef list states = [] if len(keys) > 1 else None
    cdef State before, made, newer
    cdef Py_ssize_t number
    computed = None
    for number in range(len(keys)):
        key = keys[number]
        newer = staged.get(key) if staged is not None else None
        before = committed.get(key) if newer is None else newer
        if processor is None:
            made = State.__new__(State)
            made.form, made.step = forms[number], 1
            if before is not None:
                made.step, made.learned = before.step + 1, before.learned
        elif newer is not None or before is None or before.processor is not processor or before.spare is None:
            made = memory.next_alone(key, forms[number], processor, norm)
        else:
            if before.spare_norm is not computed:  # most keys have the Norm of one call
                computed = before.spare_norm
                compute_norm(computed)
            made = before.following(norm)
        if len(keys) == 1:
            return {key: made}
        states.append(made)
    return (None if apart else GroupStates.of(keys, forms, states)) or dict(zip(keys, states))


cpdef bint states_fit(tuple keys, tuple forms, Kept committed, Kept staged) except -1:
    """Is each key bound to this form, or to none yet?"""
    cdef GroupStates group = committed.of_group(keys)
    cdef State state
    cdef Py_ssize_t number
    if len(keys) != len(forms):
        raise ValueError(f"got {len(keys)} keys, expected {len(forms)}")
    if group is not None:  # a step binds no key to another form
        return group.is_of(forms)
    for number in range(len(keys)):
        state = staged.get(keys[number]) if staged is not None else None
        if state is None:
            state = committed.get(keys[number])
        if state is not None and state.form is not forms[number] and state.form != forms[number]:
            return False
    return True


cpdef uint64_t steps_before(states) except? 0:
    """How many calls had succeeded before those that led to these States, of all keys together."""
    if isinstance(states, GroupStates):
        return (<GroupStates> states).steps_before()
    cdef State state
    cdef uint64_t found = 0
    for state in states.values():
        found += state.step - 1
    return found
