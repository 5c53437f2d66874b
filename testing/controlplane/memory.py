"""What a leader's term refers to: which pods it still remembers, and how large it is."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, cast

import numpy as np

_OURS = "milligpu."
_PREFIX = "uid-"
# Caches that have a limit of their own.
_CACHES = {"_templates", "_shapes", "_texts", "_failed", "_masks", "_offers", "placer", "_placer", "_log"}
# The kinds of GPUs that were ever seen, among them "no GPU" for a node that lost all of them.
_KINDS = {"kinds", "kind_gpus", "_kind_of"}
_BOUNDED = frozenset(_CACHES | _KINDS)
# A list, dictionary or set counts by its elements: Python returns its memory only when it grows again.
_ELEMENT = 8


def remembered_pods(term: object) -> list[str]:
    """Return the uids of pods that are found in the term's own objects."""
    found = {each for each in _reachable(term) if isinstance(each, str) and each.startswith(_PREFIX)}
    return sorted(found)


def deep_size(term: object) -> int:
    """Return the bytes of the term's own objects."""
    return sum(_size(each) for each in _reachable(term))


def _size(thing: Any) -> int:
    if isinstance(thing, np.ndarray):
        return cast("np.ndarray[Any, Any]", thing).nbytes
    if isinstance(thing, dict | list | set | frozenset | tuple):
        return _ELEMENT * len(cast("list[Any]", thing))
    return sys.getsizeof(thing)


def _reachable(term: object) -> Iterator[Any]:
    """Yield every object once that the term refers to."""
    seen: set[int] = set()
    stack: list[Any] = [term]
    while stack:
        thing = stack.pop()
        if id(thing) not in seen:
            seen.add(id(thing))
            yield thing
            stack.extend(_parts(thing))


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else None


def _parts(thing: Any) -> Iterable[Any]:
    if isinstance(thing, dict):
        table = cast("dict[Any, Any]", thing)
        return [*table.keys(), *table.values()]
    if isinstance(thing, list | tuple | set | frozenset):
        return cast("Iterable[Any]", thing)
    if isinstance(thing, Enum):
        return ()
    kind = cast("type[Any]", type(thing))
    if (names := _fields(kind)) is not None:
        return [getattr(thing, name, None) for name in names]
    if kind.__module__.startswith(_OURS) and hasattr(thing, "__dict__"):
        return [value for name, value in cast("dict[str, Any]", vars(thing)).items() if name not in _BOUNDED]
    return ()
