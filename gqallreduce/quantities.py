"""Quantities with units as people write them: 100MB, 64MiB, 100Gbit/s, 2us."""

import argparse
import re
from fractions import Fraction

_FORM = re.compile(r"\s*(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+)\s*(?P<unit>[A-Za-z/]*)\s*")
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
BYTES = {"": 1} | {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
RATES = {f"{prefix}bit/s": Fraction(factor, 8) for prefix, factor in _DECIMAL.items()} | {
    f"{prefix}B/s": factor for prefix, factor in (_DECIMAL | _BINARY).items()
}
LINK_RATES = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
TIMES = {"s": 1, "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}


class Unfit(argparse.ArgumentTypeError, ValueError):
    """Not such a quantity: what was got, and what is expected. Also what an option of the command line may raise."""


def nbytes(text):
    """A whole number of bytes >= 0; without a unit, bytes."""
    value = _quantity(text, BYTES, "a size as 4096, 100MB or 64MiB")
    if value != int(value):
        raise Unfit(f"got {text!r}, expected a whole number of bytes, not {float(value):g}")
    return int(value)


def bandwidth(text):
    """Bytes per second, > 0."""
    value = _quantity(text, RATES, "a rate in bits or bytes per second as 100Gbit/s, 950Mbit/s or 12.5GB/s")
    if value == 0:
        raise Unfit(f"got {text!r}, expected a rate above zero")
    return float(value)


def link_rate(text):
    """Bits per second, > 0, as bench/netbed and tc take them; None for `unlimited`."""
    if text == "unlimited":
        return None
    value = _quantity(text, LINK_RATES, "a rate as 250mbit or 1gbit, or unlimited")
    if value == 0:
        raise Unfit(f"got {text!r}, expected a rate above zero")
    return float(value)


def seconds(text):
    """Seconds >= 0."""
    return float(_quantity(text, TIMES, "a time as 2us, 500ns, 0.1ms or 1s"))


def count(text):
    """A whole number >= 1."""
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise Unfit(f"got {text!r}, expected a whole number from 1 on")
    return int(text)


def _quantity(text, units, expected):
    """Number times unit, without the rounding of binary fractions: 2.3MB is 2300000 bytes."""
    form = _FORM.fullmatch(text)
    if form is None or form["unit"] not in units:
        raise Unfit(f"got {text!r}, expected {expected}")
    return Fraction(form["number"]) * Fraction(units[form["unit"]])


def bytes_text(value):
    """Bytes in decimal units, as links are sold: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"


def link_rate_text(value):
    """Bits per second with three digits: 1 Gbit/s, 250 Mbit/s; `unlimited` for None."""
    if value is None:
        return "unlimited"
    return f"{value / 1e9:.3g} Gbit/s" if value >= 0.9995e9 else f"{value / 1e6:.3g} Mbit/s"


def seconds_text(value):
    """A time with three digits: 12.3 ms."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g} {unit}" if value < 999.5 * factor else f"{value / factor:.0f} {unit}"
    return f"{value * 1e9:.3g} ns"
