"""What people decided about each function of a header, and the check that nobody forgot one."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vendorapi.header import Function

from remote.ctypes_of import HeaderTypes
from remote.plan import CannotTravel, Hints, Row, plan

_FOLDER = Path(__file__).parent
OPERATIONS = _FOLDER / "operations.toml"


@dataclass(frozen=True, slots=True)
class ApiNotes:
    """The notes about one interface."""

    hints: Hints
    flat: frozenset[str]
    no_reply: frozenset[str]
    beside: frozenset[str]
    """Functions that wait for the device: the worker goes on with other threads of the client meanwhile."""
    by_hand: frozenset[str]
    asked: frozenset[str]
    """Functions by hand that ask the worker in the generated way when they have no answer themselves."""
    refused: dict[str, str]
    numbers: dict[str, int]
    """The operation number of each generated function. A number is never given to another."""


def read_notes(name: str) -> ApiNotes:
    """Read `NAME.toml` and the numbers of its functions."""
    raw: dict[str, Any] = tomllib.loads((_FOLDER / f"{name}.toml").read_text())
    numbers: dict[str, int] = tomllib.loads(OPERATIONS.read_text())[name]
    grouped: dict[str, set[str]] = {"by_hand": set(), "asked": set()}
    for group in raw.get("by_hand", []):
        grouped["asked" if group.get("asks") else "by_hand"] |= set(group["functions"])
    return ApiNotes(
        hints=Hints(
            frozenset(raw.get("inputs", [])),
            raw.get("counts", {}),
            raw.get("arrays", {}),
            frozenset(raw.get("filled", [])),
            raw.get("in_and_out", False),
        ),
        flat=frozenset(raw.get("flat", [])),
        no_reply=frozenset(raw.get("no_reply", [])),
        beside=frozenset(raw.get("beside", [])),
        by_hand=frozenset(grouped["by_hand"] | grouped["asked"]),
        asked=frozenset(grouped["asked"]),
        refused={name: group["why"] for group in raw.get("refused", []) for name in group["functions"]},
        numbers=numbers,
    )


def planned(functions: list[Function], types: HeaderTypes, notes: ApiNotes) -> dict[str, list[Row]]:
    """Return how the parameters of each generated function travel; SystemExit names what the notes lack."""
    result: dict[str, list[Row]] = {}
    problems: list[str] = []
    for function in functions:
        symbol = function.symbol
        found = plan(function, types, notes.hints)
        if symbol in notes.refused or (symbol in notes.by_hand and symbol not in notes.asked):
            continue
        if isinstance(found, CannotTravel):
            problems.append(f"{symbol}: {found.why}; write it by hand or refuse it")
        elif symbol not in notes.numbers:
            problems.append(f"{symbol}: not looked at; give it a number in {OPERATIONS.name}, or refuse it")
        else:
            result[symbol] = found
    problems += _contradictions({function.symbol for function in functions}, notes)
    if problems:
        raise SystemExit("\n".join(problems))
    return result


def _contradictions(symbols: set[str], notes: ApiNotes) -> list[str]:
    named = notes.by_hand | notes.no_reply | notes.beside | set(notes.refused) | set(notes.numbers)
    found = [f"{symbol}: not in the header" for symbol in sorted(named - symbols)]
    found += [f"{symbol}: by hand and refused" for symbol in sorted(notes.by_hand & set(notes.refused))]
    found += [
        f"{symbol}: has a number and is refused" for symbol in sorted(set(notes.refused) & set(notes.numbers))
    ]
    if len(set(notes.numbers.values())) != len(notes.numbers):
        found.append(f"two functions have one number in {OPERATIONS.name}")
    return found
