"""What the throughput of codecs is measured by, on the host or a GPU: one codec over the inputs of a ring.

Every repetition goes once round a ring of inputs that together are larger than the last-level cache, so nothing is
found there by luck.
"""

import numpy as np

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce.coding.codec import RegionCodec
from gqallreduce.coding.layout import Form, Grid, Region, blocks
from gqallreduce.coding.preparing import Parts, Prepared, alone

SPREAD = 0.4  # standard deviation of the data
COLUMN = 4096


def random_inputs(nbytes, cache):
    """The ring, as a generator: at least two inputs, together at least twice the cache."""
    random = np.random.default_rng(0)
    for _ in range(ring(nbytes, cache)):
        yield random.standard_normal(nbytes // 4, np.float32) * np.float32(SPREAD)


def ring(nbytes, cache):
    """How many inputs there are."""
    return max(2, -(-2 * cache // nbytes))


def interleaved(work, repetitions, seconds_of):
    """name -> seconds per repetition of each function in `work`, taken in turn by `seconds_of(function)`."""
    seconds = {name: [] for name in work}
    for number in range(1 + repetitions):
        for name, function in work.items():
            taken = seconds_of(function)
            if number:  # the first round touches every page
                seconds[name].append(taken)
    return seconds


class Coder:
    """One codec over a whole vector, as in an allreduce, for each input of the ring.

    inputs
        float32 vectors in the processor's memory.
    """

    def __init__(self, text, inputs, processor):
        scheme = gq.Scheme.parse(text)
        self.text, self.inputs, self.processor = text, inputs, processor
        size = inputs[0].size
        self.codec = scheme.codec.bind(Form((size,), "C", "float32"), arithmetic=processor.arithmetic)
        if not isinstance(self.codec, RegionCodec):
            raise ValueError(f"{text}: it sums a shorter vector, by another codec; measure that, or whole calls")
        grid = self.codec.grid(Grid(COLUMN))
        regions = [Region(start, stop - start, grid, size) for start, stop in blocks(0, size, grid)]
        bound = self.codec.nbytes_bound(regions)
        self.extents = processor.extents(regions)
        self._lent = [processor.workspace.take(bound) for _ in inputs]
        self.wires = [room[:bound] for room in self._lent]
        self.lengths = [0] * len(inputs)
        self.sums = [processor.zeros(size) for _ in inputs]
        self.residual = [processor.zeros(size) if scheme.feedback else None for _ in inputs]
        self.new_residual = [processor.zeros(size) if scheme.feedback else None for _ in inputs]
        self._step = 0

    def close(self):
        """Gives back what the processor lent."""
        for room in self._lent:
            self.processor.workspace.give(room)

    @property
    def compression(self):
        """Bytes of an input by those of its message."""
        return self.inputs[0].nbytes / (sum(self.lengths) / len(self.lengths))

    def encode(self):
        """Every input to its message, with what the last one lost."""
        self.settle()
        self.residual, self.new_residual = self.new_residual, self.residual
        self._step += 1

    def settle(self):
        """Every input to its message, whose length is asked for: on a device that waits."""
        for number in range(len(self.inputs)):
            self.lengths[number] = self._known(self._encode(number))

    def encode_again(self):
        """Makes the same messages that `settle` made, and does not wait for them."""
        for number in range(len(self.inputs)):
            self._encode(number)

    def _known(self, nbytes):
        return nbytes if isinstance(nbytes, int) else int(self.processor.on_host(nbytes.array)[0])

    def _encode(self, number):
        """Bytes of the message, or the Length that a device knows."""
        wire, stream, at = self.wires[number], _kernels.Stream(number, 0, 0, self._step), 0
        workspace = self.processor.workspace
        parts = Parts(self.extents, lambda extent: self._arrays(number, extent), workspace, stream=stream)
        prepared = (self.codec.prepares and alone(self.codec.prepare(parts))) or Prepared(self.codec)
        codec, selected = prepared.codec, prepared.selected
        for place, extent in enumerate(self.extents):
            kept = None if selected is None else selected[place]
            nbytes = codec.encode(*self._arrays(number, extent), wire[at:], extent, stream, kept)
            at = at + nbytes if at else nbytes  # a device has one extent
        if selected is not None:
            selected.release()
        return at

    def _arrays(self, number, extent):
        cut = slice(extent.start, extent.start + extent.size)
        arrays = self.inputs[number], self.residual[number], self.new_residual[number]
        return tuple(None if array is None else array[cut] for array in arrays)

    def decode(self):
        """Every message, in place of a vector."""
        for number in range(len(self.wires)):
            self._decode(self.codec.decode, number, self.sums[number])

    def decode_add(self):
        """Every message, added to a vector."""
        for number in range(len(self.wires)):
            self._decode(self.codec.decode_add, number, self.sums[number])

    def _decode(self, decode, number, y):
        wire, at = self.wires[number][: self.lengths[number]], 0
        for extent in self.extents:
            at += decode(wire[at:], y[extent.start : extent.start + extent.size], extent)
        return at

    def decoded(self):
        """(decoded, added to zeros, bytes that each read) of the first message, in the processor's memory."""
        size = self.inputs[0].size
        decoded, added = self.processor.zeros(size), self.processor.zeros(size)
        self.processor.arithmetic.copy(decoded, self.inputs[0])  # what is there must be overwritten
        read = self._decode(self.codec.decode, 0, decoded), self._decode(self.codec.decode_add, 0, added)
        return decoded, added, read
