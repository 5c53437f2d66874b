"""A session as it is on disk: enough to find it again after the service was killed."""

from dataclasses import dataclass

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.policy import SharePolicy, parse_priority
from milligpu.sessions.place import CONTAINER
from milligpu.sessions.request import SessionRequest
from milligpu.tenancy.processes import ProcessId
from milligpu.wire.documents import Document, DocumentFormat, DocumentPart, encode
from milligpu.wire.grant import decode_grant, encode_grant
from milligpu.wire.share import ShareDocument

SESSION = DocumentFormat("session")


@dataclass(frozen=True, slots=True)
class Session:
    """One command that holds a share without a pod."""

    id: str
    process: ProcessId
    """The command's first process: the session holds its share as long as this process runs."""
    command: tuple[str, ...]
    since: float
    """Seconds since 1970."""
    request: SessionRequest
    grant: Grant

    @property
    def shares(self) -> tuple[GpuShare, ...]:
        return self.grant.containers[CONTAINER]

    @property
    def whole(self) -> bool:
        """Whether it has whole GPUs, which run without the limits library."""
        return any(each.share.whole for each in self.shares)


class _Request(DocumentPart, frozen=True):
    count: int = 1
    milli: int | None = None
    mib: int | None = None
    limit: int | None = None
    policy: SharePolicy | None = None
    priority: int = 0


class _Session(Document, frozen=True):
    id: str
    pid: int
    started: int
    uid: int
    boot: str
    command: list[str]
    since: float
    wish: _Request
    grant: str


def encode_session(session: Session) -> str:
    process, request = session.process, session.request
    share = request.share
    return encode(
        _Session(
            v=SESSION.version,
            id=session.id,
            pid=process.pid,
            started=process.started,
            uid=process.uid,
            boot=process.boot,
            command=list(session.command),
            since=session.since,
            wish=_Request(share.count, share.milli, share.mib, share.limit, request.policy, request.priority),
            grant=encode_grant(session.grant),
        )
    )


def decode_session(text: str | bytes) -> Session:
    """Read a record, or raise BadFormat."""
    raw = SESSION.decode(text, _Session)
    grant = decode_grant(raw.grant)
    if CONTAINER not in grant.containers:
        raise BadFormat(SESSION.name, f"grant: must have a container {CONTAINER!r}")
    try:
        share = ShareDocument(raw.wish.count, raw.wish.milli, raw.wish.mib, None, raw.wish.limit).request()
        priority = parse_priority("priority", raw.wish.priority)
    except BadRequest as error:
        raise SESSION.refuse(error) from None
    return Session(
        id=raw.id,
        process=ProcessId(raw.pid, raw.started, raw.uid, raw.boot),
        command=tuple(raw.command),
        since=raw.since,
        request=SessionRequest(share, raw.wish.policy, priority),
        grant=grant,
    )
