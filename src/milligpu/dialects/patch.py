"""JSON Patch (RFC 6902): the operations that turn one document into another."""

from collections.abc import Iterator
from typing import Any, cast

Operation = dict[str, Any]


def json_patch(old: Any, new: Any, path: str = "") -> Iterator[Operation]:
    """Yield operations for what differs; a list of another length is replaced as a whole."""
    if type(old) is not type(new):
        yield {"op": "replace", "path": path, "value": new}
    elif isinstance(old, dict):
        yield from _mapping(cast("dict[str, Any]", old), new, path)
    elif isinstance(old, list) and len(cast("list[Any]", old)) == len(new):
        for number, (before, after) in enumerate(zip(cast("list[Any]", old), new, strict=True)):
            yield from json_patch(before, after, f"{path}/{number}")
    elif old != new:
        yield {"op": "replace", "path": path, "value": new}


def _mapping(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[Operation]:
    for key in old.keys() - new.keys():
        yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, value in new.items():
        at = f"{path}/{_escaped(key)}"
        if key in old:
            yield from json_patch(old[key], value, at)
        else:
            yield {"op": "add", "path": at, "value": value}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
