"""Milli-GPU and MiB: the two integers that all arithmetic here is done in.

Fractions and sizes are read at the edge, exactly, and never become floats: 0.1 + 0.2 fits into 0.3.
"""

import re
from fractions import Fraction
from typing import NewType

from milligpu.model.errors import BadRequest

Milli = NewType("Milli", int)
"""Thousandths of one GPU's compute."""

Mib = NewType("Mib", int)
"""Mebibytes of one GPU's memory."""

WHOLE = Milli(1000)
"""One GPU."""

# A node has at most 16 GPUs today; a request for more GPUs than this is a typo.
GPUS_MAX = 64
# No GPU has 16 TiB of memory, and every sum of bytes stays well inside 64 bits.
MIB_MAX = Mib(16 * 1024 * 1024)

BYTES_PER_MIB = 1024 * 1024
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SMALL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_SUFFIX = {"": Fraction(1), **_SMALL} | {k: Fraction(v) for k, v in (_BINARY | _DECIMAL).items()}
# No request needs more digits, and Python's integer parser takes quadratic time.
_QUANTITY = re.compile(r"([+-]?)(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:([eE][+-]?\d{1,2})|([A-Za-z]{0,2}))")


def parse_quantity(field: str, value: object) -> Fraction:
    """Read a Kubernetes quantity (300, "300", "1k", "0.5", "4Gi", "1e3") exactly."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    if isinstance(value, str) and len(value) <= 18 and value.isascii() and value.isdigit():
        return Fraction(int(value))  # most are plain numbers
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) and value.isascii() else None
    suffix = match[4] or "" if match else ""
    if match is None or suffix not in _SUFFIX:
        raise BadRequest(field, value, 'a Kubernetes quantity such as 300, "0.5" or "4Gi"')
    sign = -1 if match[1] == "-" else 1
    return sign * Fraction(match[2] + (match[3] or "")) * _SUFFIX[suffix]


def parse_whole(field: str, value: object, low: int, high: int) -> int:
    """Read a whole number between two bounds, in any spelling of a Kubernetes quantity."""
    if type(value) is int and low <= value <= high:
        return value  # most are: inventories and grants are full of them
    want = f"a whole number from {low} to {high}"
    try:
        number = parse_quantity(field, value)
    except BadRequest:
        raise BadRequest(field, value, want) from None
    if number.denominator != 1 or not low <= number <= high:
        raise BadRequest(field, value, want)
    return int(number)


def parse_milli(field: str, value: object) -> tuple[int, Milli]:
    """Read an amount of milli-GPU as (GPUs, milli on each): 300 is (1, 300), 2000 is (2, 1000)."""
    want = f"from 1 to {WHOLE}, or a multiple of {WHOLE} up to {GPUS_MAX * WHOLE} (1000 = one GPU)"
    try:
        amount = parse_whole(field, value, 1, GPUS_MAX * WHOLE)
    except BadRequest:
        raise BadRequest(field, value, want, hint=milli_hint(value)) from None
    if amount <= WHOLE:
        return 1, Milli(amount)
    if amount % WHOLE:
        nearest = amount // WHOLE * WHOLE
        raise BadRequest(field, value, want, hint=f"ask for {nearest} or {nearest + WHOLE}")
    return amount // WHOLE, WHOLE


def milli_hint(value: object) -> str:
    """What to write instead of a fraction where thousandths of a GPU are wanted."""
    try:
        return f"for {value} of a GPU write {parse_fraction('', value)}" if "." in str(value) else ""
    except BadRequest:
        return ""


def parse_fraction(field: str, value: object, *, zero: bool = False) -> Milli:
    """Read a fraction of one GPU such as "0.5", to the nearest milli: 0.333 fits three times."""
    least = "0" if zero else "0.001"
    want = f"a fraction of one GPU from {least} to 1"
    # Floats appear in YAML (gpu_limit: 0.5); their shortest spelling is what the author wrote.
    text = repr(value) if isinstance(value, float) else value
    try:
        exact = parse_quantity(field, text)
    except BadRequest:
        raise BadRequest(field, value, want) from None
    if not 0 <= exact <= 1:
        raise BadRequest(field, value, want)
    milli = Milli((2 * exact.numerator * WHOLE + exact.denominator) // (2 * exact.denominator))
    if milli == 0 and (exact > 0 or not zero):
        raise BadRequest(field, value, want)
    return milli


def parse_mib(field: str, value: object) -> Mib:
    """Read a whole number of MiB; a typo must never mean "no limit", and 4Ki must not mean 4 GiB."""
    want = f"a whole number of MiB from 1 to {MIB_MAX}, without a unit"
    if isinstance(value, str) and value[-2:] in _BINARY:
        raise BadRequest(field, value, want, hint=_mib_hint(value))
    try:
        return Mib(parse_whole(field, value, 1, MIB_MAX))
    except BadRequest:
        raise BadRequest(field, value, want) from None


def _mib_hint(value: str) -> str:
    try:
        return f"for {value} write {parse_size('', value)}"
    except BadRequest:
        return ""


def parse_size(field: str, value: object, *, largest: int = MIB_MAX) -> Mib:
    """Read a size with its unit ("16Gi", "512Mi", or plain bytes) and round up to whole MiB."""
    want = f'a size such as "16Gi" or "512Mi", at most {largest >> 20}Ti'
    try:
        size = parse_quantity(field, value)
    except BadRequest:
        raise BadRequest(field, value, want) from None
    mib = Mib(-(-size.numerator // (size.denominator * BYTES_PER_MIB)))
    if not 1 <= mib <= largest:
        raise BadRequest(field, value, want)
    return mib


# A bare number up to this is a number of GiB to most people, a larger one of MiB; no GPU has fewer bytes than 1Mi.
_GIB_LIKELY, _MIB_LIKELY = 512, BYTES_PER_MIB
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,18})?")


def parse_size_with_unit(field: str, value: object) -> Mib:
    """Read a size as a person types it. A bare number is refused: it could be bytes, MiB or GiB."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if isinstance(text, str) and _NUMBER.fullmatch(text):
        raise BadRequest(field, text, 'a size with its unit, such as "16Gi" or "512Mi"', hint=_unit_hint(text))
    return parse_size(field, value)


def _unit_hint(text: str) -> str:
    number = Fraction(text)
    if not number:
        return ""
    if number <= _GIB_LIKELY:
        return f"did you mean {text}Gi?"
    if number < _MIB_LIKELY:
        return f"did you mean {text}Mi?"
    mib = -(-number.numerator // (number.denominator * BYTES_PER_MIB))
    return f"did you mean {show_mib(mib)}?" if mib <= MIB_MAX else ""


def show_milli(milli: int) -> str:
    """A share as people say it: 500 is "0.5", 2000 is "2"."""
    return f"{milli / WHOLE:.3f}".rstrip("0").rstrip(".")


def show_mib(mib: int) -> str:
    """A size as people say it: 8192 is "8Gi", 1536 is "1536Mi"."""
    return f"{mib // 1024}Gi" if mib and mib % 1024 == 0 else f"{mib}Mi"
