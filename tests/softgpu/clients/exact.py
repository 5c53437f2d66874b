"""Exact reference arithmetic: rational results, rounded to a format in each of the four modes."""

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """A binary float: digits of the significand, exponents of the smallest and the largest normal number."""

    digits: int
    lowest: int
    highest: int


FORMATS = {
    "float": Format(24, -126, 127),
    "double": Format(53, -1022, 1023),
    "half": Format(11, -14, 15),
    "bfloat": Format(8, -126, 127),
    "e5m2": Format(3, -14, 15),
}


def rounded(value: Fraction, form: Format, side: str) -> float:
    """`side` is rn, rz, ru or rd, as CUDA's functions are called."""
    if not value:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, form.lowest) - form.digits + 1)
    whole, rest = divmod(size / unit, 1)
    away = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "rz": False,
        "ru": rest > 0 and value > 0,
        "rd": rest > 0 and value < 0,
    }[side]
    found = (whole + away) * unit
    largest = (2 - Fraction(2) ** (1 - form.digits)) * Fraction(2) ** form.highest
    if found > largest:
        inward = side == "rz" or (side == "ru" and value < 0) or (side == "rd" and value > 0)
        found = largest if inward else math.inf
    return -float(found) if value < 0 else float(found)


def root(value: Fraction) -> Fraction:
    """A number that rounds like the square root: exact, or between the same neighbors in 200 bits."""
    bits = 400 + value.denominator.bit_length()
    scaled = (value.numerator << 2 * bits) // value.denominator
    whole = math.isqrt(scaled)
    inexact = whole * whole != scaled or (value.numerator << 2 * bits) % value.denominator != 0
    return Fraction(2 * whole + inexact, 1 << (bits + 1))
