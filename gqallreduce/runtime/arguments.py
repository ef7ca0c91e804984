"""What a call was given, checked: everything that a rank can see for itself."""

from __future__ import annotations

import operator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.product import source_of


class Given:
    """What a call was given.

    name
        the key, or the tuple of a group's keys.
    keys, sources, targets, forms
        of each buffer; sources and targets are Buffers, the same ones in an in-place call.
    arrays, into
        the same sources, and targets, where they are plain arrays of the forms of an earlier call (KnownForms); else
        None. `into` is None in an in-place call too.
    agreed
        what ranks have agreed on in that call.
    written
        the name of the argument that is written in place.
    """

    def __init__(self, name: str | tuple[str, ...] | None, sources: list[Buffer], targets: list[Buffer]):
        self.name, self.sources, self._targets = name, sources, targets
        self.arrays = self.into = self.agreed = None
        self.written, self._read = "buf", []
        self.keys = name if isinstance(name, tuple) else (name,)
        self.forms = tuple([source.form for source in sources])

    @classmethod
    def known(cls, agreed, arrays, into) -> Given:
        """Arrays that are summed, into others or in place; their Buffers are made when they are looked at."""
        made = cls.__new__(cls)
        made.name, made.keys, made.agreed, made.arrays, made.into, made.forms = (
            agreed.name, agreed.keys, agreed, arrays, into, arrays.forms.forms
        )  # fmt: skip
        made.written, made._read = "buf", []
        return made

    def read(self, shards: list[Buffer | None]) -> None:
        """Of each key, what is read besides. ValueError if another key's buffer that is written shares its memory."""
        self._read = shards
        if len(self.keys) > 1 and any(each is not None for each in shards):
            _require_apart_in_memory(self)

    @cached_property
    def sources(self) -> list[Buffer]:
        return [Buffer.of_known(self.arrays, number) for number in range(len(self.keys))]

    @property
    def targets(self) -> list[Buffer]:
        return self.sources if self.arrays is not None and self.into is None else self._targets

    @cached_property
    def _targets(self) -> list[Buffer]:
        return [Buffer.of_known(self.into, number) for number in range(len(self.keys))]

    @property
    def located(self):
        """Where in GPU memory the first buffer is; None for the host."""
        return None if self.arrays is not None else self.sources[0].located

    @property
    def device(self) -> str:
        """In words, where the buffers are."""
        return "in host memory" if self.arrays is not None else self.targets[0].device

    @property
    def nbytes(self) -> int:
        return sum([each.nbytes for each in self.sources]) if self.arrays is None else self.arrays.forms.nbytes

    def on_host(self, processor) -> Given:
        """Copies in host memory of buffers on a device; `copy_back` takes over the results."""
        sources = [source.copied_to_host(processor) for source in self.sources]
        pairs = zip(sources, self.sources, self.targets, strict=True)
        targets = [here if target is source else target.copied_to_host(processor) for here, source, target in pairs]
        return Given(self.name, sources, targets)

    def copy_back(self, processor, results: Given) -> None:
        with processor.active(self.sources[0].located, self.name):
            for target, result in zip(self.targets, results.targets, strict=True):
                target.copy_from_host(processor, result)
            processor.finish()

    def tell_written(self) -> None:
        """Its targets are about to be written."""
        if self.arrays is None:  # else they are plain
            for target in self.targets:
                target.tell_written()

    def overlap(self, other: Given) -> str:
        """The argument that shares memory with what another call writes, or writes what it reads; "" if none does."""
        mine, theirs = self._plain(), other._plain()
        if mine and theirs and not self._read and not any(one.meet(two) for one in mine for two in theirs):
            return ""
        for one, two in _overlapping([*self.memory("mine"), *other.memory("theirs")]):
            return (one if one.owner == "mine" else two).name
        return ""

    def _plain(self) -> list:
        return [each for each in (self.arrays, self.into) if each is not None]

    def memory(self, owner: str | None = None) -> list[_Memory]:
        """Where its buffers lie. `owner`: of all of them; None: each key's number."""
        found = []
        for number, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            whose = number if owner is None else owner
            name = self.written if target is source else "out"
            found.append(_Memory(*target.bounds, target, name, True, whose))
            if target is not source:
                found += [_Memory(*part.bounds, part, "buf", False, whose) for part in source.parts]
            shard = self._read[number] if self._read else None
            if shard is not None:
                found.append(_Memory(*shard.bounds, shard, "shard", False, whose))
        return found


class _Memory(NamedTuple):
    """From one address up to another: a Buffer given as `name`, read or written."""

    begin: int
    stop: int
    buffer: Buffer
    name: str
    written: bool
    owner: int | str


def _overlapping(every: list[_Memory]):
    """Pairs of different owners that share memory, of which one at least is written."""
    open_: list[_Memory] = []
    for each in sorted(every, key=lambda memory: memory.begin):
        open_ = [other for other in open_ if other.stop > each.begin]
        for other in open_:
            meet = each.owner != other.owner and (each.written or other.written)
            if meet and each.buffer.overlaps(other.buffer):
                yield each, other
        open_.append(each)


def known(buf, out, key, plans, memory, looked=None) -> Given | None:
    """The arguments of a call as the last one of its key, or keys, had them; None if each must be looked at.

    looked
        the Arrays that `buf` is, by forms of the caller's, if it knows; these are compared once.
    """
    last = plans.last(key)
    found = last and _kernels.known_arrays(last, buf, out, memory, looked)
    return None if found is None else Given.known(last, *found)


def given(buf, out, key, allreduce, plans, name: str = "buf") -> Given:
    """The arguments of a call: a buffer and its key, or a list of buffers and a list of as many keys.

    name
        of the argument `buf`, as the caller knows it.
    """
    scheme, processors, memory = allreduce.scheme, allreduce.processors, allreduce.memory
    if not isinstance(buf, (list, tuple)):
        if isinstance(key, (list, tuple)):
            raise TypeError(
                f"key is a {type(key).__name__}, so a group; {name} is a {type(buf).__name__}, expected a list"
            )
        key = plain_key(key, scheme)
        known = memory.get(key)
        source, target = buffers(buf, out, key, processors, known and known.form, name)
        return Given(key, [source], [target])
    known = plans.known_group(key) if isinstance(key, (list, tuple)) else None
    keys = _group_keys(buf, out, key, known, scheme, name)
    sources, targets = [], []
    for number, each in enumerate(keys):
        known = memory.get(each)
        into = None if out is None or out[number] is buf[number] else out[number]
        try:
            found = buffers(buf[number], into, each, processors, known and known.form, name)
        except (TypeError, ValueError) as error:
            raise type(error)(f"key {each!r} of the group: {error}".replace(f": key {each!r}:", ":")) from None
        if sources and found[0].device != sources[0].device:
            raise ValueError(
                f"buffers of a group lie in one memory: that of key {each!r} is {found[0].device}, that of key "
                f"{keys[0]!r} {sources[0].device}"
            )
        sources.append(found[0])
        targets.append(found[1])
    found = Given(keys, sources, targets)
    _require_apart(found)
    return found


def _group_keys(buf, out, key, known: tuple | None, scheme, name: str) -> tuple[str, ...]:
    """The name of the group; `known`: if it was called before."""
    if not isinstance(key, (list, tuple)):
        raise TypeError(
            f"{name} is a {type(buf).__name__}, so a group of buffers; key is a {type(key).__name__}, expected a list "
            "of as many strings"
        )
    if not buf or len(key) != len(buf):
        raise ValueError(f"got {len(buf)} buffers and {len(key)} keys, expected as many keys as buffers, at least one")
    if out is not None and (not isinstance(out, (list, tuple)) or len(out) != len(buf)):
        raise ValueError(f"out: expected a list of {len(buf)} buffers, as buf")
    if known is not None:
        return known
    for each in key:
        if not isinstance(each, str):
            raise TypeError(f"a key of the group is a {type(each).__name__}, expected a string")
    keys = tuple(plain_key(each, scheme) for each in key)
    if len(set(keys)) < len(keys):
        twice = next(each for number, each in enumerate(keys) if each in keys[:number])
        raise ValueError(f"key {twice!r} is in the group twice, expected keys that differ")
    return keys


def _require_apart(group: Given) -> None:
    """ValueError if what is written of one key overlaps the buffers of another."""
    if group.targets[0].located is None:
        arrays = [target.memory for target in group.targets]
        for source, target in zip(group.sources, group.targets, strict=True):
            if source is not target:
                arrays += [part.memory for part in source.parts]
        if _kernels.are_apart(arrays):  # nearly always
            return
    _require_apart_in_memory(group)


def _require_apart_in_memory(group: Given) -> None:
    for one, two in _overlapping(group.memory()):
        first, second = sorted((one.owner, two.owner))
        raise ValueError(f"the buffers of keys {group.keys[first]!r} and {group.keys[second]!r} of the group overlap")


def plain_key(key, scheme) -> str | None:
    """The key, as a plain string: other kinds of strings are written differently by `repr`, and so hashed."""
    if key is not None and not isinstance(key, str):
        raise TypeError(f"key is a {type(key).__name__}, expected a string")
    if key is None and (scheme.feedback or scheme.codec.learns):
        what = "a residual" if scheme.feedback else "what it has learned"
        raise ValueError(f"{scheme} keeps {what}: give the buffer a key")
    return None if key is None else str.__str__(key)


def integer(name: str, value) -> int:
    """TypeError unless it is an integer, of Python's or NumPy's."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r}, expected an integer")
    return operator.index(value)


def truth(name: str, value) -> bool:
    """TypeError unless it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}={value!r}, expected True or False")
    return bool(value)


def buffers(buf, out, key, processors, known: tuple | None, name: str = "buf") -> tuple[Buffer, Buffer]:
    """The call's Buffers, source and target. `known`: the form that the key had before, None if any will do."""
    target = None if out is None else Buffer(out)
    source = Buffer(buf) if type(buf) is np.ndarray else source_of(buf, target)
    if source.located is not None:
        source.arithmetic = processors.of(source).arithmetic
    form = source.form[:3]
    if known is not None and known != form:
        raise ValueError(f"key {key!r}: got shape, order, dtype {form}, expected {tuple(known)} as before")
    if target is None:
        source.require_writable(name)
        return source, source
    if target.device != source.device:
        raise ValueError(f"out is {target.device}, expected {source.device} as buf")
    target.arithmetic = source.arithmetic
    target.require_writable("out")
    if target.form.kept != form:
        raise ValueError(f"out has {target.form.kept}, expected {form} as buf")
    if source.overlaps_partly(target):
        raise ValueError("out overlaps buf partly; expected the same memory or other memory")
    return source, target
