"""Parts of objects that people write: read into plain shapes, or refused with field, value and what is allowed."""

from collections.abc import Mapping
from typing import Any, cast

from milligpu.model.errors import BadRequest

Json = Mapping[str, Any]


def read_mapping(field: str, value: object) -> Json:
    """Return a mapping; an empty one for a field that is left out."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest(field, value, "a mapping")
    return cast("Json", value)


def refuse_unknown(where: str, found: Json, *known: str) -> None:
    """Refuse a field that nobody reads, such as a misspelled one."""
    for key in found:
        if key not in known:
            raise BadRequest(f"{where}.{key}", found[key], f"left out; known are {', '.join(known)}")


def read_flag(field: str, value: object) -> bool:
    """Return a flag."""
    if not isinstance(value, bool):
        raise BadRequest(field, value, "true or false")
    return value
