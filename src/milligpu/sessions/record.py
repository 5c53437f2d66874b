"""What is on disk of a session: enough to find it again after the agent was killed."""

from dataclasses import dataclass

from milligpu.agent.books import CONTAINER, Held
from milligpu.agent.processes import Process
from milligpu.agent.wish import Wish, share_request
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.grant import GpuShare
from milligpu.model.qos import Policy, parse_priority
from milligpu.wire.grant import decode_grant, encode_grant
from milligpu.wire.json import VERSION, Document, Part, decode, encode, refused

_NAME = "session"


@dataclass(frozen=True, slots=True)
class Session:
    """A command that holds a share."""

    id: str
    process: Process
    """The command's first process: the share is held as long as it lives."""
    command: tuple[str, ...]
    since: float
    """Seconds of the wall clock."""
    wish: Wish
    held: Held

    @property
    def shares(self) -> tuple[GpuShare, ...]:
        """What it holds of each of its GPUs."""
        return self.held.shares

    @property
    def whole(self) -> bool:
        """Whether it has its GPUs to itself, with nothing of ours in the way."""
        return any(share.whole for share in self.shares)


class _Wish(Part, frozen=True):
    count: int = 1
    milli: int | None = None
    mib: int | None = None
    limit: int | None = None
    policy: Policy | None = None
    priority: int = 0


class _Session(Document, frozen=True):
    id: str
    pid: int
    started: int
    uid: int
    boot: str
    command: list[str]
    since: float
    wish: _Wish
    grant: str


def encode_session(session: Session) -> str:
    """Write the record."""
    process, share = session.process, session.wish.share
    return encode(
        _Session(
            v=VERSION,
            id=session.id,
            pid=process.pid,
            started=process.started,
            uid=process.uid,
            boot=process.boot,
            command=list(session.command),
            since=session.since,
            wish=_Wish(
                share.count, share.milli, share.mib, share.limit, session.wish.policy, session.wish.priority
            ),
            grant=encode_grant(session.held.grant),
        )
    )


def decode_session(text: str | bytes) -> Session:
    """Read a record; one that does not read is nobody's."""
    raw = decode(_NAME, text, _Session)
    grant = decode_grant(raw.grant)
    if CONTAINER not in grant.containers:
        raise BadFormat(_NAME, f"grant: want a container {CONTAINER!r}")
    try:
        found = share_request(raw.wish.count, raw.wish.milli, raw.wish.mib, raw.wish.limit)
        priority = parse_priority("priority", raw.wish.priority)
    except BadRequest as error:
        raise refused(_NAME, error) from None
    return Session(
        id=raw.id,
        process=Process(raw.pid, raw.started, raw.uid, raw.boot),
        command=tuple(raw.command),
        since=raw.since,
        wish=Wish(found, raw.wish.policy, priority),
        held=Held(raw.id, grant),
    )
