"""How a lane of the interpreter in Python waits: for messages, or for what a device found."""

from __future__ import annotations

from gqallreduce.coding.message import Incoming, Receipt


class AwaitsReceipts:
    """Of one lane.

    processor
        the call's.
    waiting
        the lane goes on when one of these is ready; empty if it need not wait.
    """

    def __init__(self, processor):
        self.processor = processor
        self.waiting: list[Incoming | Receipt] = []
        self._receipt = self._then = None  # of a device, and what is done with what it found

    def _when(self, receipt: Receipt, then) -> None:
        """Wait; then `then(flawed)` is called."""
        self._receipt, self._then, self.waiting = receipt, then, [receipt]

    def _settled(self) -> bool:
        """Is there nothing to wait for? If a Receipt is there, what was to be done is done."""
        if self._receipt is None:
            return True
        receipt, then = self._receipt, self._then
        if not receipt.ready:
            self.waiting = [receipt]
            return False
        self._receipt = self._then = None
        then(receipt.flawed)
        return True

    def _found(self, flawed: bool | None, then) -> None:
        """`then` is called if a value was not finite, as soon as that is known."""
        if flawed is None:
            self._when(self.processor.settle(), lambda flawed: then() if flawed else None)
        elif flawed:
            then()
