"""Versions with dots, such as those of drivers and of CUDA."""

import re
from dataclasses import dataclass, field

from milligpu.model.errors import BadRequest

# 535.104.05 and 12.4. Longer numbers are mistakes.
_FORM = re.compile(r"[0-9]{1,5}(\.[0-9]{1,5}){0,3}", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class DottedVersion:
    """A version; compares by number, so 535.104 is above 535.54, and 12 equals 12.0."""

    numbers: tuple[int, ...]
    """Without zeros at the end."""
    text: str = field(compare=False)
    """As it was written: NVIDIA writes 535.54.03."""

    def __str__(self) -> str:
        return self.text


def parse_version(field_: str, value: object) -> DottedVersion:
    """Read a version such as 535.104.05 or 12.4."""
    if not (isinstance(value, str) and _FORM.fullmatch(value)):
        raise BadRequest(field_, value, "a version such as 535.104.05 or 12.4")
    numbers = [int(number) for number in value.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return DottedVersion(tuple(numbers), value)
