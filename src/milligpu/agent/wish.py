"""What a command asks for, and how to say it."""

from collections.abc import Sequence
from dataclasses import dataclass

from milligpu.model.errors import BadRequest
from milligpu.model.qos import Policy
from milligpu.model.request import ShareRequest
from milligpu.model.units import Mib, Milli, show_mib, show_milli


@dataclass(frozen=True, slots=True)
class Wish:
    """What a command asks for."""

    share: ShareRequest
    policy: Policy | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        fixed = self.policy is None or self.policy is Policy.FIXED
        if self.share.milli == 0 and self.share.limit is None and fixed:
            want = "a limit, or the policy best-effort or equal, where no compute is guaranteed"
            raise BadRequest("limit", None, want)


def share_request(count: int, milli: int | None, mib: int | None, limit: int | None) -> ShareRequest:
    """A share from plain numbers, each checked."""
    return ShareRequest(
        count,
        None if milli is None else Milli(milli),
        None if mib is None else Mib(mib),
        limit=None if limit is None else Milli(limit),
    )


def describe_share(share: ShareRequest) -> str:
    """What somebody asks for, as they would say it."""
    if share.whole:
        return "a whole GPU" if share.count == 1 else f"{share.count} whole GPUs"
    parts = [] if share.milli is None else [f"{show_milli(share.milli)} GPU"]
    if share.mib is not None:
        parts.append(show_mib(share.mib))
    return ("" if share.count == 1 else f"{share.count} x ") + " with ".join(parts)


def describe_command(name: str, command: Sequence[str], room: int = 40) -> str:
    """A session as a person knows it; where its program lies is of no interest here."""
    text = " ".join([command[0].rpartition("/")[2], *command[1:]] if command else [])
    return f"{name} ({text if len(text) <= room else text[: room - 1] + '…'})"
