"""What a rank did when, for Chrome's tracing page and Perfetto: a JSON file of events, a row for each lane.

An event is written when its call ends. The list in the file is closed when the object is, or at the end of the
interpreter; viewers take it without that too.
"""

from __future__ import annotations

import atexit
import json
from pathlib import Path

from gqallreduce.scheduling import instructions as code

# The instructions that take time.
NAMES = {
    code.Encode: "encode", code.Join: "join", code.BeginSum: "begin sum", code.Decode: "decode",
    code.Share: "share error", code.Finish: "finish",
}  # fmt: skip
WAIT, SEND, PREPARE = "wait", "send", "prepare"


class Trace:
    """Of one object on one rank, into `path` with the number of the rank before its suffix."""

    def __init__(self, path: str, rank: int):
        path = Path(path)
        self.path, self._rank = path.with_name(f"{path.stem}.{rank}{path.suffix}"), rank
        self._file = self.path.open("w")
        self._file.write("[\n")
        self._file.write(json.dumps({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}))
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
            atexit.unregister(self.close)
