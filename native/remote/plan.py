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
    BUFFER = auto()
    """Text or bytes that the function writes, up to a length that another parameter has."""
    ARRAY = auto()
    """Flat values that the function writes; another parameter points to their number, both ways."""


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter and its way."""

    travel: Travel
    parameter: Parameter
    kind: str
    counter: str | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """What a header cannot say, by `function.parameter` or by the parameter's name alone."""

    inputs: frozenset[str] = frozenset()
    counts: dict[str, str] = field(default_factory=dict[str, str])
    buffers: dict[str, str] = field(default_factory=dict[str, str])
    arrays: dict[str, str] = field(default_factory=dict[str, str])
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
    if key in hints.arrays:
        return Row(Travel.ARRAY, parameter, inner, hints.arrays[key])
    if key in hints.buffers or (inner == "char" and hints.buffers.get("*") in names):
        return Row(Travel.BUFFER, parameter, inner, hints.buffers.get(key, hints.buffers.get("*")))
    if kind.startswith("const ") or key in hints.inputs:
        return _read(parameter, inner, counter, types)
    return _written(parameter, inner, counter, types, hints)


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
