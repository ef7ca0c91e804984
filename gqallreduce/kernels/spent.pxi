"""What a call cost, as the calling rank saw it."""

from functools import partial


cdef class Spent:
    """Of one call (`stats.last`) or of all since `reset` (`stats.total`).

    scheme
        fully resolved; with auto/ also what ran and why (`reason`).
    bytes_sent, bytes_received, messages
        handed to MPI point to point, headers included; a dense MPI_Allreduce counts its buffer once and no message, and
        that of mpi/ its integers.
    ratio
        bytes a dense ring would send / bytes sent; with mpi/ those of the buffer / those of the integers; 1.0 when
        dense, for P = 1 or size 0.
    encode, decode, wait, total
        wall seconds.
    selected
        values encoded by `adaptive`, `randk` or `topk`, not forwarded ones; 0 for other codecs.
    saturated
        values that a codec clipped in this rank's encodings, since it could not send as much; on host buffers only.
    residual_norm
        Euclidean norm of this rank's residual of the key after the call (in `total`: of all keys, now); 0.0 without
        /ef. Computed when it is read, or before the residual's array is used again.
    """

    cdef public str scheme, reason
    cdef public int64_t bytes_sent, bytes_received, messages, selected, saturated
    cdef public double dense_bytes, encode, decode, wait, total
    cdef public bint dense
    cdef public object norm

    def __init__(self, str scheme="", str reason="", norm=None):
        self.scheme, self.reason, self.norm = scheme, reason, norm

    @staticmethod
    cdef Spent of(str scheme, str reason):
        """Of a call that begins."""
        cdef Spent made = Spent.__new__(Spent)
        made.scheme, made.reason = scheme, reason
        return made

    def __repr__(self):
        names = ("scheme", "reason", "bytes_sent", "bytes_received", "messages", "ratio", "encode", "decode", "wait",
                 "total", "selected", "saturated", "residual_norm")
        return "Spent(" + ", ".join([f"{name}={getattr(self, name)!r}" for name in names]) + ")"

    def __reduce__(self):
        """Copied, or sent to another rank, it has the norm as a number."""
        names = ("bytes_sent", "bytes_received", "messages", "selected", "saturated", "dense_bytes", "encode", "decode",
                 "wait", "total", "dense")
        values = {name: getattr(self, name) for name in names}
        return spent_of, (self.scheme, self.reason, self.residual_norm, values)

    @property
    def ratio(self):
        return ratio_of(self.dense_bytes, self.bytes_sent) if not self.dense else 1.0

    @property
    def residual_norm(self):
        return 0.0 if self.norm is None else self.norm()

    def also(self, str reason not None):
        """Adds to `reason` what it does not say yet."""
        if reason not in self.reason:
            self.reason += f"; {reason}" if self.reason else reason

    cpdef count(self, NativeOperation operation):
        """What the runtime in C++ has counted of an operation that is done."""
        cdef CSpent* spent = &operation.data.spent
        self.encode += spent.encode
        self.decode += spent.decode
        self.messages += spent.messages
        self.bytes_sent += spent.bytes_sent
        self.bytes_received += spent.bytes_received
        self.selected += spent.selected
        self.saturated += spent.saturated

    cpdef add(self, Spent other):
        """All but what is said of a call in words."""
        self.bytes_sent += other.bytes_sent
        self.bytes_received += other.bytes_received
        self.messages += other.messages
        self.dense_bytes += other.dense_bytes
        self.encode += other.encode
        self.decode += other.decode
        self.wait += other.wait
        self.total += other.total
        self.selected += other.selected
        self.saturated += other.saturated


cdef class Recorded:
    """What calls have cost (stats.py): the last one, and all together."""

    cdef public Spent last, total

    cpdef record(self, Spent spent, norm):
        """A call has succeeded; `norm` is that of the residual that it left."""
        self.last = spent
        spent.norm = norm
        self.total.scheme = spent.scheme
        self.total.add(spent)


def spent_of(str scheme, str reason, norm, values):
    """What a Spent was before it was copied."""
    made = Spent(scheme, reason, partial(float, norm))
    for name, value in values.items():
        setattr(made, name, value)
    return made


def ratio_of(double dense_bytes, double bytes_sent):
    """Bytes that exact values would take / bytes sent; 1.0 where either is none."""
    return dense_bytes / bytes_sent if bytes_sent and dense_bytes else 1.0
