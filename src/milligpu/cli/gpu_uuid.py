"""Finding a GPU by the beginning of its UUID, as commands accept it."""

from collections.abc import Iterable

from milligpu.model.errors import BadRequest

_PREFIX = "GPU-"
_SHOWN_MAX = 8


def find_uuid(text: str, uuids: Iterable[str], nodes: Iterable[str] = ()) -> str:
    """The one UUID that begins with `text`, which may leave out `GPU-`; BadRequest if there is none or several.

    A refusal also lists `nodes`, where a node's name would have been accepted.
    """
    known = sorted(uuids)
    if text in known:
        return text
    begin = text.lower()
    found = [
        uuid
        for uuid in known
        if begin and (uuid.lower().startswith(begin) or uuid.removeprefix(_PREFIX).lower().startswith(begin))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadRequest("gpu", text, f"longer, because several UUIDs begin with it: {_shown(found)}")
    others = sorted(nodes)
    also = f"; or a node with GPUs: {_shown(others)}" if others else ""
    raise BadRequest("gpu", text, f"the UUID of a GPU or its beginning, one of: {_shown(known)}{also}")


def _shown(uuids: list[str]) -> str:
    return (", ".join(uuids[:_SHOWN_MAX]) or "there are none") + (", …" if len(uuids) > _SHOWN_MAX else "")
