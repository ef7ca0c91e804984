"""One call of an Allreduce, as stages: check its arguments, agree, carry an Operation out, and let it take effect.

Also what other calls of an object have in common with it: how they carry an Operation out, and how a rank whose own
call is invalid takes part.
"""

from __future__ import annotations

from time import perf_counter

from gqallreduce.backends.product import written
from gqallreduce.hashing import hash64
from gqallreduce.runtime import arguments
from gqallreduce.runtime.flaws import not_finite
from gqallreduce.runtime.halves import Half, first_of_all
from gqallreduce.runtime.indirect import begin
from gqallreduce.runtime.integer_sum import add_by_mpi
from gqallreduce.runtime.memory import keep_learned
from gqallreduce.runtime.operand import Operand, Operands, step_of
from gqallreduce.runtime.plans import Agreed
from gqallreduce.runtime.preparation import prepare
from gqallreduce.runtime.run import run_of
from gqallreduce.scheme import Scheme
from gqallreduce.stats import Spent
from gqallreduce.transport.agreement import agree, compare_replicas
from gqallreduce.transport.call import Call, Finished
from gqallreduce.transport.dense import Dense, dense_on
from gqallreduce.transport.exchange import Largest


def reduce(call: Call, allreduce, buf, key, out, found: Found | None = None, half: Half | None = None):
    """The stages of `Allreduce.__call__` and `start`, of their object. `found`: if the caller has looked already.

    half
        of an allreduce, if the call is one.
    """
    began, plans = perf_counter(), allreduce.plans_of(half and half.which)
    allreduce.begun += half is None or not half.scatters  # of what ranks have alike
    verify = allreduce.verify and allreduce.begun % allreduce.verify == 0
    try:
        given, call.result, dropped = found or look(allreduce, plans, buf, key, out, half=half)
        call.held = given  # keys and buffers belong to it from now on
        if dropped:
            out = None if call.result is buf else call.result
            buf, key, out = map(_copied, (buf, key, out))  # the caller may change lists meanwhile
            half = half and half.with_copies()
            for other in dropped:
                yield Finished(other)
            call.held = given = _checked(allreduce, plans, buf, key, out, half)[0]
        if allreduce.unheard:
            _raise_unheard(allreduce)
        if half is not None:
            half.take_shards(given, allreduce.processors.of(given))
        given.tell_written()
    except Exception as error:
        yield from join_invalid(call, allreduce, error)
    agreed, place = yield from compare(call, allreduce, plans, given)
    yield from go_on(call, allreduce, plans, given, agreed, place, began, verify, half)


def go_on(
    call: Call, allreduce, plans, given: arguments.Given, agreed: Agreed, place, began: float, verify=False, half=None
):  # fmt: skip
    """The stages of `reduce` once it is known what runs, and as which try of `auto/`, if it is one."""
    processor = allreduce.processors.of(given)
    spent, staged = Spent(agreed.what, agreed.why), None
    if allreduce.processors.host.hindrance:
        spent.also(allreduce.processors.host.hindrance)
    if _through_host(given, agreed, processor):
        staged, worker = given.on_host(processor), allreduce.processors.host
        spent.also(f"through host memory: {_why_staged(agreed)}")
    else:
        worker = processor
    with worker.active((staged or given).located, given.name):
        forms, feedback = agreed.kept, allreduce.scheme.feedback
        states, norm = allreduce.memory.next(given.keys, forms, worker, feedback, apart=half is not None)
        if half is not None:
            states = half.begin(states, allreduce.memory, worker.arithmetic)
    operands = Operands(staged or given, states, agreed.streams)
    started = perf_counter()
    if agreed.dense:
        flaw = yield from _dense(call, allreduce, operands, agreed, processor, spent)
    else:
        plan, started = plans.plan(agreed, worker, states.values()), perf_counter()
        flaw, learned = yield from carry_out(call, plan, operands, given.name, agreed, spent)
        if half is not None and half.scatters:
            flaw = yield from first_of_all(plan, step_of(operands), agreed.signature, flaw, spent)
        if learned:
            states = keep_learned(states, given.keys, learned)
    if flaw is not None:
        raise not_finite(flaw, given.keys, given.sources, allreduce.size)
    if staged:
        given.copy_back(processor, staged)
    if half is not None:
        call.result = half.returned(call.result)
    if verify and (half is None or not half.scatters):
        results = b"".join(processor.on_host(target.array).tobytes() for target in given.targets)
        yield from compare_replicas(call.link, agreed.signature, results)
    if place is not None:
        agreed.trials.note(place, perf_counter() - started)
    plans.remember((given.name, given.forms), agreed)
    call.states, call.spent = states, spent
    spent.wait, spent.total = call.wait, perf_counter() - began
    allreduce.memory.commit(states)
    allreduce.account(spent, given.nbytes / (1 if half is None else 2), norm)


def _through_host(given: arguments.Given, agreed: Agreed, processor) -> bool:
    """Is the call carried out on copies in host memory?

    Yes if the codec has no kernels for devices, or for a group whose messages have any length: a device finds the end
    of such a message only if it holds one tensor.
    """
    if processor.batches or agreed.dense:
        return False
    codec, products = Scheme.parse(agreed.what).codec, any(form.factors is not None for form in given.forms)
    return codec.host_only or products or agreed.by_mpi or not (len(given.sources) == 1 or codec.fixed_size)


def _why_staged(agreed: Agreed) -> str:
    if agreed.by_mpi:
        return "MPI adds integers there"
    what = "device arrays" if Scheme.parse(agreed.what).codec.host_only else "a group on a device"
    return f"this codec does not take {what}"


def carry_out(call: Call, plan, operands: Operands | list[Operand], name, agreed: Agreed, spent: Spent):
    """The stages of a Run or an Operation; its first flaw or None, and what it has learned."""
    given = plan, operands, name, agreed.signature, spent
    run = None
    if call.owner.trace is None and not agreed.by_mpi:
        run = run_of(plan.known([each.learned for each in operands]) if plan.recalls else None, *given)
    if run is not None:
        call.data = run
        try:
            yield from run.stages()
            return run.flaw, run.learned
        finally:
            run.end()
    operation = begin(*given)
    operation.trace = call.owner.trace
    try:
        if agreed.by_mpi:
            yield from prepare(operation, agreed.signature)
            yield from add_by_mpi(call, operation)
        else:
            call.data = operation
            yield from operation.stages()
        return operation.flaws.first, operation.learned
    finally:
        operation.end()


def _dense(call: Call, allreduce, operands: Operands, agreed: Agreed, processor, spent: Spent):
    """The stages of a dense call: tensor by tensor."""
    dense = Dense(call.link, call.number, allreduce.processors.host.workspace, agreed.signature, allreduce.average)
    begin, flaws = 0, []
    for each in operands:
        flaw = yield from dense_on(processor, dense, *each[:4], spent)
        if flaw is not None:
            flaws.append((flaw[0], begin + flaw[1]))
        begin += each.source.size
    return min(flaws, default=None)


def join_invalid(call: Call, allreduce, error: Exception):
    """This rank's own call is invalid: take part in the others' agreement, and tell them. Stages; raises error."""
    call.invalid = error
    if allreduce.size > 1:
        yield from agree(call.link, None, 0, 0)
    call.known_to_all = True
    try:
        raise error
    finally:
        del error  # which refers to this frame


Found = tuple[arguments.Given, object, list[Call]]  # what `look` has found


def look(allreduce, plans, buf, key, out, looked=None, half: Half | None = None) -> Found:
    """Everything that this rank can see for itself: the arguments of a call, checked, the object that is written, and
    calls to be finished first. No call begins.

    looked
        the Arrays that `buf` is, if the caller knows.
    """
    given, result = _checked(allreduce, plans, buf, key, out, half, looked)
    return given, result, _require_free(allreduce, given) if allreduce.home.unclaimed else []


def _checked(allreduce, plans, buf, key, out, half: Half | None, looked=None) -> tuple[arguments.Given, object]:
    given, result = arguments.known(buf, out, key, plans, allreduce.memory, looked), buf if out is None else out
    if given is None:
        result = written(buf, out)
        name = "buf" if half is None else half.written
        given = arguments.given(buf, None if result is buf else result, key, allreduce, plans, name)
    return given if half is None else half.fit(given, result, allreduce), result


def _copied(value):
    return value[:] if isinstance(value, (list, tuple)) else value


def _require_free(allreduce, given: arguments.Given) -> list[Call]:
    """ValueError if a key, or memory of the buffers, belongs to a call whose request is not waited for yet.

    Returns calls to be finished first: those whose request was dropped.
    """
    dropped = []
    for other in list(allreduce.home.unclaimed):
        if other.held is None or (other.done and other.owner.unusable):  # given up, or over with its object
            allreduce.home.unclaimed.remove(other)
            continue
        same = set(given.keys).intersection(other.held.keys) if other.owner is allreduce else ()
        overlap = given.overlap(other.held)
        if other.request() is None:
            if other.done:
                allreduce.home.unclaimed.remove(other)
            elif other.owner is allreduce or overlap:
                dropped.append(other)
        elif same:
            key = min(same, key=repr)
            what = "a call without a key" if key is None else f"key {key!r}"
            raise ValueError(f"{what} is under way; wait for its request before the next call")
        elif overlap:
            raise ValueError(f"{overlap} overlaps a buffer of {other.name}, which is under way; wait for it")
    return dropped


def _raise_unheard(allreduce) -> None:
    """The error of a call whose request was dropped."""
    dropped = [call for call in allreduce.unheard if call.request is None or call.request() is None]
    for call in dropped:
        allreduce.unheard.remove(call)
        if call.request is not None:
            raise call.error


def compare(call: Call, allreduce, plans, given: arguments.Given, first: Largest | None = None):
    """(what runs, as which try of `auto/` or None): as last time, or compared with the other ranks' calls. Stages.

    first
        of the agreement, if it is begun.
    """
    label, on_device = (given.name, given.forms), given.located is not None
    agreed = given.agreed or plans.find(label)
    if plans.measures:
        return (yield from _tried(call, allreduce, label, agreed, on_device, first))
    if agreed is None or agreed.by_mpi or allreduce.check != "first":  # no message of MPI's sum says whose it is
        agreed = yield from _agree(call, allreduce, plans, label, on_device, first)
    return agreed, None


def _agree(call: Call, allreduce, plans, label: tuple, on_device: bool, first: Largest | None):
    """What runs: compared with the other ranks' calls, and decided by rank 0. Stages."""
    agreed = plans.find(label) or plans.propose(label, allreduce.seed, allreduce.home.group, on_device)
    if allreduce.size == 1:
        return agreed
    names, step = plans.choices(), (allreduce.number, steps_of(allreduce.memory, label[0]))
    mine = names.index(agreed.choice)
    chosen = names[(yield from agree(call.link, agreed.hashes, step, mine, len(names), first))]
    return agreed if chosen == agreed.choice else plans.instead(agreed, chosen)


def _tried(call: Call, allreduce, label: tuple, last: Agreed | None, on_device: bool, begun: Largest | None):
    """What runs where `auto/` measures, and as which try, None for none: (Agreed, place). Stages.

    last: what ran for these names and forms before.
    """
    plans = allreduce.plans
    trials = (last and last.trials) or plans.trials(label)
    known = last is not None and not last.by_mpi and allreduce.check == "first"
    if known and trials.keeps(last.choice):
        (choice, why), place = trials.go_on(), trials.repeated
        call.counted = trials
    else:
        first = last or plans.propose(label, allreduce.seed, allreduce.home.group, on_device)
        step = allreduce.number, steps_of(allreduce.memory, label[0])
        given = step, first.hashes, hash64(*first.hashes), on_device, begun
        choice, why, place = yield from trials.stages(call, *given)
        last = first
    agreed = last if last.choice == choice else plans.instead(last, choice)
    agreed.why, agreed.trials = why, trials
    return agreed, place


def steps_of(memory, name):
    """How many calls of the key have succeeded, or of each key of a group."""
    if isinstance(name, tuple):
        return tuple(steps_of(memory, key) for key in name)
    state = memory.get(name)
    return 0 if state is None else (state.step, "halfway") if state.halfway else state.step
