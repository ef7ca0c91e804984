"""States as files: one for each rank, and a manifest that says which belong together.

A save is complete when its manifest is in place, which replaces the last one at once; until then that one is valid.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import time
import uuid
from pathlib import Path

import numpy as np

from gqallreduce.allreduce import Allreduce
from gqallreduce.errors import Error
from gqallreduce.runtime.meeting import meet
from gqallreduce.transport.failure import naming_errors

MANIFEST, FORMAT = "manifest.json", 1
LEFT_OVER = 86400.0  # seconds after which files of a save that never became complete are removed by another one
_OURS = re.compile(r"[0-9a-f]{12}\.(rank\d+\.npz|manifest\.json)(\.part)?")
_TREE = "tree"


def save(path, reducer) -> None:
    """Write the state of a Reducer, an Allreduce, or what `attach` of PyTorch returned, into a folder. Collective.

    An earlier save in the folder stays whole until this one is complete, and is removed then. Raises gq.Error on every
    rank if a rank cannot write; MismatchError, TimeoutError if a rank does not come, or has ended and the MPI tells so.
    """
    comm = _meet(reducer, "save()")
    name = _on_all(comm, "begin", lambda: (os.fspath(path), uuid.uuid4().hex[:12])[1])[0]
    folder = Path(path)
    mine = folder / _file_of(name, comm.rank)

    def write():
        folder.mkdir(parents=True, exist_ok=True)
        content = to_bytes(reducer.state_dict())
        _replace(mine, content)
        return {"file": mine.name, "bytes": len(content), "blake2b": _digest(content)}

    def complete():
        if comm.rank == 0:
            text = json.dumps({"format": FORMAT, "ranks": comm.size, "files": files}, indent=1)
            before.extend(_files_before(folder))
            _replace(folder / MANIFEST, text.encode(), folder / f"{name}.{MANIFEST}.part")

    before: list[str] = []
    files = _on_all(comm, "write its state", write, undo=lambda: _remove(mine))
    _on_all(comm, "write the manifest", complete, undo=lambda: _remove(mine))
    if comm.rank == 0:
        with contextlib.suppress(OSError):
            _clear(folder, name, before)


def load(path, reducer) -> None:
    """Go on from what `save` wrote, with the same number of ranks or another. Collective.

    Raises gq.Error on every rank, and changes nothing, if a file is missing, damaged, or of another save, scheme or
    set of rules; MismatchError, TimeoutError if a rank does not come, or has ended and the MPI tells so.
    """
    comm = _meet(reducer, "load()")
    _on_all(comm, "begin", lambda: os.fspath(path))
    folder = Path(path)

    def read():
        files = manifest["files"]
        wanted = [comm.rank] if manifest["ranks"] == comm.size else range(manifest["ranks"])
        states = [_read(folder, files[rank]) for rank in wanted]
        return states[0] if manifest["ranks"] == comm.size else states

    # One for all ranks: folders of several hosts may hold different saves.
    manifest = _on_all(comm, "read the manifest", lambda: _manifest(folder) if comm.rank == 0 else None)[0]
    states = _on_all(comm, "read its state", read, share=False)
    reducer.restore(_on_all(comm, "take over its state", lambda: reducer.checked(states), share=False))


def to_bytes(state: dict) -> bytes:
    """A state of arrays and plain values as an .npz file, in which nothing is pickled."""
    arrays: dict[str, np.ndarray] = {}
    tree, file = _packed(state, arrays), io.BytesIO()
    np.savez(file, **{_TREE: np.frombuffer(json.dumps(tree).encode(), np.uint8)}, **arrays)
    return file.getvalue()


def from_bytes(content: bytes) -> dict:
    """The inverse of `to_bytes`; ValueError for other content."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return _unpacked(json.loads(found[_TREE].tobytes()), found)
    except Exception as error:
        raise ValueError(f"not a state that was saved: {type(error).__name__} {error}") from error


def _packed(value, arrays: dict):
    """As JSON, with arrays by name."""
    if isinstance(value, dict):
        return {"dict": [[_packed(key, arrays), _packed(each, arrays)] for key, each in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_packed(each, arrays) for each in value]}
    if hasattr(value, "__array__") and not isinstance(value, np.generic):  # of NumPy, or a tensor in host memory
        name = f"array{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array": name}
    return {"value": value.item() if isinstance(value, np.generic) else value}


def _unpacked(value: dict, arrays):
    (kind, content), = value.items()  # fmt: skip
    if kind == "dict":
        return {_unpacked(key, arrays): _unpacked(each, arrays) for key, each in content}
    if kind in ("list", "tuple"):
        found = [_unpacked(each, arrays) for each in content]
        return tuple(found) if kind == "tuple" else found
    return arrays[content] if kind == "array" else content


def _meet(reducer, what: str):
    """The communicator, once all ranks have come here."""
    allreduce = getattr(reducer, "failure_flags", reducer)
    if not isinstance(allreduce, Allreduce):
        got = type(reducer).__name__
        raise TypeError(f"got a {got}, expected a Reducer, an Allreduce, a HookState, or what attach() returned")
    meet(allreduce, what)
    return allreduce.comm


def _on_all(comm, what: str, call, share: bool = True, undo=lambda: None):
    """What `call` returns on all ranks, or on this one; gq.Error on every rank if it fails on one. Collective.

    undo
        called where it has failed; not after an error of MPI's, since other ranks may have gone on.
    """
    found = problem = interrupt = None
    try:
        found = call()
    except BaseException as error:
        problem, interrupt = f"{type(error).__name__}: {error}", None if isinstance(error, Exception) else error
    with naming_errors(f"save() or load(), to {what}", comm):
        for rank, each in enumerate(comm.allgather(problem)):
            if each is not None:
                undo()
                if interrupt is not None:
                    raise interrupt
                raise Error(f"rank {rank} could not {what}: {each}")
        return comm.allgather(found) if share else found


def _file_of(name: str, rank: int) -> str:
    """That of a rank in the save of this name."""
    return f"{name}.rank{rank}.npz"


def _clear(folder: Path, name: str, before: list[str]) -> None:
    """Remove the files of the save that this one has replaced, and what is left of saves that never became complete."""
    old = time.time() - LEFT_OVER
    for each in folder.iterdir():
        left = _OURS.fullmatch(each.name) and not each.name.startswith(name) and _is_older(each, old)
        if each.name in before or left:
            _remove(each)


def _files_before(folder: Path) -> list[str]:
    """Those of the save that is complete now; none if there is no sound one."""
    try:
        return [each["file"] for each in _manifest(folder)["files"]]
    except (Error, OSError, ValueError):
        return []


def _is_older(path: Path, when: float) -> bool:
    try:
        return path.stat().st_mtime < when
    except OSError:
        return False


def _manifest(folder: Path) -> dict:
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
        ranks, files = found["ranks"], found["files"]
        fits = found["format"] == FORMAT and type(ranks) is int and len(files) == ranks > 0
        fits = fits and all({"file", "bytes", "blake2b"} <= each.keys() for each in files)
        fits = fits and all(type(each["file"]) is str for each in files)
        one = files[0]["file"].partition(".")[0] if fits else ""
        fits = fits and [each["file"] for each in files] == [_file_of(one, rank) for rank in range(ranks)]
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{MANIFEST} cannot be read: {type(error).__name__} {error}") from error
    if not fits:
        raise ValueError(f"{MANIFEST} is not one of format {FORMAT} with a file of one save for each of {ranks} ranks")
    return found


def _read(folder: Path, entry: dict) -> dict:
    """The state in a file, as the manifest has it."""
    content = (folder / Path(entry["file"]).name).read_bytes()
    if len(content) != entry["bytes"] or _digest(content) != entry["blake2b"]:
        raise ValueError(f"{entry['file']} is damaged, or of another save: its checksum is not that of {MANIFEST}")
    return from_bytes(content)


def _replace(path: Path, content: bytes, part: Path | None = None) -> None:
    """Write a file that is there as a whole or not at all. part: what it is called until it is whole."""
    part = part or path.with_name(f"{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        _remove(part)
        raise


def _remove(path: Path) -> None:
    """If it is there, and can be removed."""
    with contextlib.suppress(OSError):
        path.unlink()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
