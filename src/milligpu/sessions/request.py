"""What a command asks for."""

from collections.abc import Sequence
from dataclasses import dataclass

from milligpu.model.errors import BadRequest
from milligpu.model.policy import SharePolicy
from milligpu.model.request import ShareRequest, policy_problem
from milligpu.model.units import Mib, Milli, show_milli


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The request of one command."""

    share: ShareRequest
    policy: SharePolicy | None = None
    priority: int = 0
    gpus: tuple[str, ...] | None = None
    """The GPUs on which the share must be; None: whichever fit."""

    def __post_init__(self) -> None:
        problem = policy_problem(self.share, self.policy)
        if problem:
            limit = self.share.limit
            if limit is None:
                problem = "with -p 0 no compute is guaranteed; set how much idle time to use, such as --limit 0.5"
            raise BadRequest("--limit", None if limit is None else show_milli(limit), problem)


def session_share(count: int, milli: Milli | None, mib: Mib | None, limit: Milli | None) -> ShareRequest:
    """The share that options name; refused in the words and units of the options."""
    if milli == 0 and mib is None:
        raise BadRequest("-m", None, "with -p 0 the memory follows from nothing; write such as -m 2Gi")
    if limit is not None and limit < (milli or 0):
        want = f"a fraction from {show_milli(milli or 0)} to 1, because -p is {show_milli(milli or 0)}"
        raise BadRequest("--limit", show_milli(limit), want)
    return ShareRequest(count, milli, mib, limit=limit)


def describe_command(name: str, command: Sequence[str], room: int = 40) -> str:
    """Name a session with its command line, without the program's directory."""
    text = " ".join([command[0].rpartition("/")[2], *command[1:]] if command else [])
    return f"{name} ({text if len(text) <= room else text[: room - 1] + '…'})"
