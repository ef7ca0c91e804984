"""The halves of an allreduce as calls: what trainers need that keep a part of the optimizer's state on each rank."""

from __future__ import annotations

from gqallreduce.backends.buffer import Buffer
from gqallreduce.request import Request
from gqallreduce.runtime.calls import Calls
from gqallreduce.runtime.halves import Half, counted, part_of, part_view, require, require_dense
from gqallreduce.runtime.reduction import reduce
from gqallreduce.runtime.repeated import NOT_BEGUN, repeated
from gqallreduce.scheduling.schedule import ALLGATHER, REDUCE_SCATTER
from gqallreduce.transport.call import call_in_words


class Shards(Calls):
    """Calls of an Allreduce that end, or begin, with a part of the vector on each rank.

    A rank's part, its *shard*, is a range of the array's elements in the order of its memory: of the P ranges that are
    cut as the codec needs it, between its columns or buckets where there are P of them, or of `counts` elements each.
    With `counts` shards have the same borders by every scheme. A shard may be empty: of 5000 elements `onebit`, with
    columns of 4096, gives rank 0 of 2 the first 4096, rank 1 the others. It is a vector of the array's dtype.
    """

    def reduce_scatter(self, buf, *, key=None, out=None, counts=None):
        """Sum (or average) `buf` over all ranks, of which each gets its shard alone; returns the shard.

        buf, key, out
            as of an allreduce, but without gaps in memory; of a group too. In `buf`, or in `out`, the shard holds the
            sum; the other elements of what was written have no defined values.
        counts
            elements of each rank's shard, alike on all ranks: P numbers that add up to the size. Of a group a list of
            these.
        Returns a vector that shares the memory of what was written: the sum as this rank has formed it, which is not
        encoded any more. Schemes on `direct`, `ring`, `halving_doubling` (2^k ranks) and `hierarchical` (all hosts have
        the same number of ranks, all lead, and the outer schedule has halves) have halves; without a schedule it is
        `direct`. Errors as of an allreduce, on every rank.
        Cost: half of the bytes of the allreduce and the messages of its first half; 32 bytes for each other rank, in
        ceil(log2 P) messages, by which all learn of a value that is not finite.
        """
        return self._half(buf, key, out, Half(REDUCE_SCATTER, counts))

    def allgather(self, shard, *, out, key=None, counts=None):
        """Give all ranks the shards of all, encoded; returns `out`.

        shard
            of this rank, of the dtype and in the memory of `out`; None if it lies in `out` already.
        out
            the whole array, alike on all ranks afterwards: what was not sent is missing on this rank too.
        key
            names the array. With /ef what encoding a shard has lost is added to the next allgather of this key. Where
            this object sums the key by `reduce_scatter` in between, it is added to that sum: the two in turn are the
            allreduce, bit for bit, where the scheme names its schedule and without `counts`. Another vector, such as
            the parameters whose gradients are summed, is another key.
        counts
            as in `reduce_scatter`.
        Raises ValueError for codecs that must know all ranks' values before they encode (`terngrad`, `alq`, ...), and
        for an object that averages. Cost: half of the bytes of the allreduce and the messages of its second half.
        """
        return self._half(out, key, None, Half(ALLGATHER, counts, shard))

    def _half(self, buf, key, out, half: Half):
        result = repeated(self, buf, key, out, half)
        if result is not NOT_BEGUN:
            return result
        return self.perform(call_in_words(key, half.words), reduce, self, buf, key, out, None, half)

    def start_reduce_scatter(self, buf, *, key=None, out=None, counts=None) -> Request:
        """Begin the same call and return, as `start` does."""
        return self._start(call_in_words(key, "reduce-scatter"), buf, key, out, None, Half(REDUCE_SCATTER, counts))

    def start_allgather(self, shard, *, out, key=None, counts=None) -> Request:
        """Begin the same call and return, as `start` does. The shard is read before it returns."""
        return self._start(call_in_words(key, "allgather"), out, key, None, None, Half(ALLGATHER, counts, shard))

    def _start(self, name: str, *given) -> Request:
        """Begin a call with these arguments of `reduce`."""
        return self.request(name, reduce, Request, (self, *given))

    def shard(self, buf, *, counts=None):
        """This rank's shard of an array, a vector that shares its memory. Local."""
        require(self.scheme, REDUCE_SCATTER, self.plans.topology)
        buffer = Buffer(buf)
        require_dense(buffer)
        form = buffer.form._replace(counts=counted(counts, buffer.form, self.size))
        part = part_of(self.scheme.codec, form, self.size, self.rank)
        return part_view(buf, buffer.order, buffer.memory, part)
