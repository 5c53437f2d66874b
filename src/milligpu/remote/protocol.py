"""The messages between a client and a GPU server: one JSON object per line, over TLS.

Requests with unknown fields are refused, because a restriction that is not understood must not be ignored; answers
may have fields that a client of an older release does not know. The connections of the client's programs are not
here: they are the native wire (`native/remote/wire.h`).
"""

import msgspec

from milligpu.model.errors import BadFormat
from milligpu.model.policy import SharePolicy
from milligpu.sessions.protocol import RequestRefused
from milligpu.wire.status import GpuStatus, MachineStatus

VERSION = 1
"""Of these messages. A server refuses requests of a version that it does not know."""

CONTROL_MAGIC = b"mgpu-ctl"
WORKER_MAGIC = b"mgpu-wrk"
MAGIC_SIZE = 8
SESSION_SIZE = 32
"""What follows `WORKER_MAGIC`: the session, padded with zeros."""
# A status of a machine with many sessions, or a list of revoked tokens.
LINE_MAX = 8 << 20

# More than a machine has.
GPUS_NAMED_MAX = 64

# The clocks of two machines may differ by this much.
SKEW_S = 60
BEAT_SECONDS = 3.0
# Five beats. The network may be away for so long; then the session ends, and others get its GPU.
SILENCE_SECONDS = 15.0


class RemoteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """What a client sends."""


class OpenSession(RemoteRequest, frozen=True, tag="open"):
    """Ask for a share for a command, for as long as this connection is open."""

    v: int
    token: str
    command: list[str]
    count: int = 1
    milli: int | None = None
    mib: int | None = None
    limit: int | None = None
    policy: SharePolicy | None = None
    priority: int = 0
    wait: bool = True
    gpus: list[str] | None = None
    """The only GPUs that will do; None: all of the server's. More than `GPUS_NAMED_MAX` are refused."""


class AttachPod(RemoteRequest, frozen=True, tag="attach"):
    """Ask for the share that the grant of the sender's pod names. The session outlives this connection."""

    v: int
    token: str
    """The pod's own service-account token, for the audience `milligpu`."""
    container: str


class ListGpus(RemoteRequest, frozen=True, tag="list"):
    v: int
    token: str


class ReadServerStatus(RemoteRequest, frozen=True, tag="status"):
    """Ask for GPUs, shares and sessions: all of them for an admin's token, else those of the token's name."""

    v: int
    token: str


class DrainServer(RemoteRequest, frozen=True, tag="drain"):
    """Open no further sessions, or open them again; only with an admin's token."""

    v: int
    token: str
    drain: bool


class ReadHealth(RemoteRequest, frozen=True, tag="health"):
    """Ask for the checks of the server's machine, then answer beats, by which the client measures the network."""

    v: int
    token: str
    payload: int = 0
    """So many bytes are sent along, to measure the bandwidth."""


class ExchangeRevocations(RemoteRequest, frozen=True, tag="revocations"):
    """Exchange the list of revoked tokens. It needs no token: only the pool's authority can sign a list."""

    v: int
    signed: str
    """The newest list that the sender has; empty if it has none."""


class ClientBeat(RemoteRequest, frozen=True, tag="beat"):
    """The client lives."""


class RemoteAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind"):
    """What a server sends."""


class SessionOpened(RemoteAnswer, frozen=True, tag="opened"):
    """The share is granted. Programs prove with `key` that the session is theirs."""

    session: str
    key: str


class SessionWaits(RemoteAnswer, frozen=True, tag="waits"):
    message: str


class GpuList(RemoteAnswer, frozen=True, tag="gpus"):
    machine: str
    gpus: list[GpuStatus]
    draining: bool = False
    driver: str = ""
    """The version of the driver; empty where the server does not know it."""
    cuda: str = ""
    """The newest version of CUDA that the driver supports, likewise."""


class PoolSession(msgspec.Struct, frozen=True, omit_defaults=True):
    """One session as the server lists it."""

    id: str
    name: str
    """Whose token opened it."""
    client: str
    """The client's address."""
    command: list[str]
    since: float
    """Seconds since 1970."""
    session: str = ""
    """Its name in the machine's own status; empty while it waits."""


class ServerStatus(RemoteAnswer, frozen=True, tag="status"):
    status: MachineStatus
    sessions: list[PoolSession]
    draining: bool = False


class HealthLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One result of a check, as `milligpu health` shows it."""

    group: str
    name: str
    level: str
    result: str
    message: str
    fix: str = ""
    figures: dict[str, float] = msgspec.field(default_factory=dict[str, float])


class HealthRead(RemoteAnswer, frozen=True, tag="health"):
    release: str
    """The server's version of milligpu."""
    protocol: int
    """The newest version of these messages that it knows."""
    time: float
    """Its clock, in seconds since 1970."""
    lines: list[HealthLine]


class HealthPayload(RemoteAnswer, frozen=True, tag="payload"):
    data: str


class RevocationsHeld(RemoteAnswer, frozen=True, tag="revocations"):
    """The newest list that the server has now."""

    signed: str
    ended: int = 0
    """Sessions that ended because of the list that was sent."""


class ServerDrained(RemoteAnswer, frozen=True, tag="drained"):
    draining: bool
    sessions: int
    """Sessions that still run."""


class ServerBeat(RemoteAnswer, frozen=True, tag="beat"):
    """The server lives."""


ClientMessage = (
    OpenSession
    | AttachPod
    | ListGpus
    | ReadServerStatus
    | ReadHealth
    | DrainServer
    | ExchangeRevocations
    | ClientBeat
)
ServerMessage = (
    SessionOpened
    | SessionWaits
    | GpuList
    | ServerStatus
    | HealthRead
    | HealthPayload
    | RevocationsHeld
    | ServerDrained
    | ServerBeat
    | RequestRefused
)

_CLIENT: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_SERVER: msgspec.json.Decoder[ServerMessage] = msgspec.json.Decoder(ServerMessage)


def encode_line(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode_client(line: bytes) -> ClientMessage:
    try:
        return _CLIENT.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFormat("request", str(error), hint="is the client of a newer milligpu?") from None


def decode_server(line: bytes) -> ServerMessage:
    try:
        return _SERVER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFormat("answer of the GPU server", str(error)) from None
