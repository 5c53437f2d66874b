"""JSON Patch (RFC 6902): the operations that turn one document into another."""

from collections.abc import Iterator
from typing import Any, cast

Operation = dict[str, Any]


def patch(old: object, new: object, path: str = "") -> Iterator[Operation]:
    """Only what differs; lists of another length are replaced as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _mapping(cast("dict[str, object]", old), cast("dict[str, object]", new), path)
    elif (
        isinstance(old, list)
        and isinstance(new, list)
        and len(cast("list[object]", old)) == len(cast("list[object]", new))
    ):
        pairs = zip(cast("list[object]", old), cast("list[object]", new), strict=True)
        for number, (before, after) in enumerate(pairs):
            yield from patch(before, after, f"{path}/{number}")
    elif type(old) is not type(new) or old != new:
        yield {"op": "replace", "path": path, "value": new}


def _mapping(old: dict[str, object], new: dict[str, object], path: str) -> Iterator[Operation]:
    for key in old.keys() - new.keys():
        yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, value in new.items():
        at = f"{path}/{_escaped(key)}"
        if key in old:
            yield from patch(old[key], value, at)
        else:
            yield {"op": "add", "path": at, "value": value}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
