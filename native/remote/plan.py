"""How each parameter of a function travels, read from its declaration and the notes."""

import re
from dataclasses import dataclass, field
from enum import Enum, auto

from vendorapi.header import Function, Parameter

from remote.ctypes_of import HeaderTypes


class Travel(Enum):
    """How one parameter goes to the worker, or comes back."""

    HANDLE = auto()
    VALUE = auto()
    STRING = auto()
    INPUT = auto()
    """A flat value, or an array of them, that the function reads."""
    HANDLES = auto()
    OUTPUT = auto()
    IN_AND_OUT = auto()
    HANDLE_OUTPUT = auto()
    ARRAY = auto()
    """Flat values that the function writes, or reads and writes; another parameter has their number."""
    HANDLE_ARRAY = auto()
    """Handles that the function writes; another parameter has their number."""


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter and its way."""

    travel: Travel
    parameter: Parameter
    kind: str
    counter: str | None = None
    """The parameter that has the number of values."""
    by_pointer: bool = False
    """Whether that parameter points to the number, which the function changes."""
    is_read: bool = False
    """Whether the function also reads the values of an array that it writes."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What a header cannot say, by `function.parameter` or by the parameter's name alone."""

    inputs: frozenset[str] = frozenset()
    counts: dict[str, str] = field(default_factory=dict[str, str])
    arrays: dict[str, str] = field(default_factory=dict[str, str])
    """Arrays that are written, and the parameter that counts them; `*`: of all texts."""
    filled: frozenset[str] = frozenset()
    """Arrays among those that are read, too."""
    in_and_out: bool = False
    """Whether functions read what they write: NVML's structs hold the version that the caller wants."""


@dataclass(frozen=True, slots=True)
class CannotTravel:
    """Why a function cannot be generated."""

    why: str


def kind_of(parameter: Parameter) -> str:
    """Return a parameter's type, with one space before each group of stars."""
    name = rf"\b{parameter.name}\b\s*(\[[^\]]*\])?$"
    text = re.sub(name, lambda match: "*" if match[1] else "", parameter.declaration)
    return re.sub(r"\s*\*\s*", "*", " ".join(text.split())).replace("*", " *", 1).strip()


def plan(function: Function, types: HeaderTypes, hints: Hints) -> list[Row] | CannotTravel:
    """Return the way of each parameter."""
    rows: list[Row] = []
    for parameter in function.parameters:
        row = _row(function, parameter, types, hints)
        if isinstance(row, CannotTravel):
            return row
        rows.append(row)
    return rows


def _row(function: Function, parameter: Parameter, types: HeaderTypes, hints: Hints) -> Row | CannotTravel:
    kind, key = kind_of(parameter), f"{function.symbol}.{parameter.name}"
    names = {each.name for each in function.parameters}
    counter = hints.counts.get(key, hints.counts.get(parameter.name))
    counter = counter if counter in names else None
    if types.is_callback(kind):
        return CannotTravel(f"{parameter.name} is a callback")
    if "*" not in kind:
        return _by_value(parameter, kind, types)
    if kind == "const char *":
        return Row(Travel.STRING, parameter, kind)
    inner = kind.removeprefix("const ").removesuffix(" *")
    if "*" in inner:
        return CannotTravel(f"{parameter.name} points to pointers")
    if key in hints.arrays or (inner == "char" and hints.arrays.get("*") in names):
        return _array(function, parameter, inner, types, hints)
    if kind.startswith("const ") or key in hints.inputs:
        return _read(parameter, inner, counter, types)
    if _counts_an_array(function, parameter.name, hints):
        return Row(Travel.IN_AND_OUT, parameter, inner)
    return _written(parameter, inner, counter, types, hints)


def _array(
    function: Function, parameter: Parameter, inner: str, types: HeaderTypes, hints: Hints
) -> Row | CannotTravel:
    key = f"{function.symbol}.{parameter.name}"
    counter = hints.arrays.get(key, hints.arrays.get("*"))
    by_pointer = any(each.name == counter and "*" in kind_of(each) for each in function.parameters)
    if types.is_handle(inner):
        return Row(Travel.HANDLE_ARRAY, parameter, inner, counter, by_pointer)
    if inner != "void" and types.is_flat(inner):
        return Row(Travel.ARRAY, parameter, inner, counter, by_pointer, key in hints.filled)
    return CannotTravel(f"{parameter.name} is an array of values with pointers inside")


def _counts_an_array(function: Function, name: str, hints: Hints) -> bool:
    return any(hints.arrays.get(f"{function.symbol}.{each.name}") == name for each in function.parameters)


def _by_value(parameter: Parameter, kind: str, types: HeaderTypes) -> Row | CannotTravel:
    if types.is_handle(kind):
        return Row(Travel.HANDLE, parameter, kind)
    if types.is_flat(kind):
        return Row(Travel.VALUE, parameter, kind)
    return CannotTravel(f"{parameter.name} has a type with pointers")


def _read(parameter: Parameter, inner: str, counter: str | None, types: HeaderTypes) -> Row | CannotTravel:
    if types.is_handle(inner) and counter:
        return Row(Travel.HANDLES, parameter, inner, counter)
    if inner != "void" and types.is_flat(inner):
        return Row(Travel.INPUT, parameter, inner, counter)
    return CannotTravel(f"{parameter.name} has pointers inside, or no known length")


def _written(
    parameter: Parameter, inner: str, counter: str | None, types: HeaderTypes, hints: Hints
) -> Row | CannotTravel:
    if counter:
        return CannotTravel(f"{parameter.name} is an array that is written")
    if types.is_handle(inner):
        return Row(Travel.HANDLE_OUTPUT, parameter, inner)
    if inner not in ("void", "char") and types.is_flat(inner):
        return Row(Travel.IN_AND_OUT if hints.in_and_out else Travel.OUTPUT, parameter, inner)
    return CannotTravel(f"{parameter.name} has pointers inside, or no known length")
