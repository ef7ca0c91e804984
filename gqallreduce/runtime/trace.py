"""What a rank did when, for Chrome's tracing page and Perfetto: a JSON file of events, a row for each lane.

An event is written when its call ends. The list in the file is closed when the object is, or at the end of the
interpreter; viewers take it without that too. Times are those of time.perf_counter, which processes of one host share;
the first event says what the host's clock showed at zero, by which `timeline` sets hosts side by side.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from pathlib import Path

from gqallreduce.scheduling import instructions as code

# The instructions that take time.
NAMES = {
    code.Encode: "encode", code.Join: "join", code.BeginSum: "begin sum", code.Decode: "decode",
    code.Share: "share error", code.Finish: "finish",
}  # fmt: skip
WAIT, SEND, PREPARE = "wait", "send", "prepare"

_being_written: set[Path] = set()


class Trace:
    """Of one object on one rank, into `path` with the number of the rank before its suffix.

    TypeError for what is no path; ValueError while another object writes there; OSError as of `open`.
    """

    def __init__(self, path: str | os.PathLike, rank: int):
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"trace={path!r}, expected the name of a file, such as 'calls.json'")
        path = Path(path)
        self.path, self._rank = path.with_name(f"{path.stem}.{rank}{path.suffix}").absolute(), rank
        if self.path in _being_written:
            raise ValueError(
                f"trace={str(path)!r}: another object writes it; give each object a file, or close that one"
            )
        self._file = self.path.open("w")
        _being_written.add(self.path)
        more = {"name": f"rank {rank}", "clock": time.time() - time.perf_counter()}
        self._file.write("[\n" + json.dumps({"name": "process_name", "ph": "M", "pid": rank, "args": more}))
        self._sent = 0
        atexit.register(self.close)

    def add(self, name: str, began: float, ended: float, call: str, lane: int, **more) -> None:
        """Something that a lane did, in seconds of time.perf_counter. Sends overlap others: they are apart."""
        event = {"name": name, "pid": self._rank, "tid": lane, "ts": began * 1e6, "args": {"call": call, **more}}
        if name != SEND:
            self._write({**event, "ph": "X", "dur": (ended - began) * 1e6})
            return
        self._sent += 1
        self._write({**event, "ph": "b", "cat": SEND, "id": self._sent})
        self._write({**event, "ph": "e", "cat": SEND, "id": self._sent, "ts": ended * 1e6})

    def _write(self, event: dict) -> None:
        if self._file is not None:
            self._file.write(",\n" + json.dumps(event))

    def close(self) -> None:
        """The file is complete."""
        if self._file is not None:
            self._file.write("\n]\n")
            self._file.close()
            self._file = None
            _being_written.discard(self.path)
            atexit.unregister(self.close)
