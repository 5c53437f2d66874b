"""Objects as JSON documents, JSON patches, and the API server's refusals."""

from typing import Any

import msgspec

Document = dict[str, Any]
NOT_FOUND, CONFLICT, GONE, INVALID, TOO_MANY = 404, 409, 410, 422, 429


class Refusal(Exception):
    """An error status, as the API server answers it."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.retry_after_s = retry_after_s


def apply_json_patch(thing: Document, operations: list[Document]) -> Document:
    """Return a changed copy; refuse all of it if a test fails."""
    changed: Document = msgspec.json.decode(msgspec.json.encode(thing))
    for operation in operations:
        *path, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        at: Any = changed
        for part in path:
            try:
                at = at[int(part) if part.isdigit() else part]
            except IndexError:
                missing = f"the server rejected our request: {operation['path']} does not exist"
                raise Refusal(INVALID, missing) from None
        match operation["op"]:
            case "test":
                if at.get(last) != operation["value"]:
                    raise Refusal(INVALID, f"the server rejected our request: testing {operation['path']} failed")
            case "remove":
                del at[int(last) if last.isdigit() else last]
            case _:
                at[last] = operation["value"]
    return changed
