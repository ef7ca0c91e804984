"""Codecs as the runtime calls them: functions, with their options."""


cdef class Coder:
    """How regions are encoded and decoded; made by the functions below."""

    cdef CCoder data

    def __init__(self):
        raise TypeError("a Coder is made by levels_coder, eden_coder, onebit_coder or plain_coder")


cdef Coder new_coder(Family family):
    cdef Coder coder = Coder.__new__(Coder)
    coder.data = coder_of(family)
    return coder


def levels_coder(Levels levels not None, bint l2, str coding="fixed"):
    """Of a level codec; `coding` as levels_encode ("fixed") or coded_encode has it."""
    cdef Coder coder = new_coder(Family.kLevels if coding == "fixed" else Family.kCodedLevels)
    coder.data.options.levels = levels.data
    coder.data.options.l2 = l2
    if coding != "fixed":
        coder.data.options.coding = coding_of(coding)
    return coder


def eden_coder(int bits, bint contracted):
    if not 1 <= bits <= 4:
        raise ValueError(f"bits: got {bits}, expected 1 to 4")
    cdef Coder coder = new_coder(Family.kEden)
    coder.data.options.bits = bits
    coder.data.options.contracted = contracted
    return coder


def onebit_coder():
    return new_coder(Family.kOneBit)


def plain_coder(int format):
    if format not in (0, 1, 3):
        raise ValueError(f"format: got {format}, expected 0 (float16), 1 (bfloat16) or 3 (float32)")
    cdef Coder coder = new_coder(Family.kPlain)
    coder.data.options.format = format
    return coder
