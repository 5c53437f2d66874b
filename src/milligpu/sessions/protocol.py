"""The messages between commands and the session service: one JSON object per line over a unix socket.

A message never says who sends it: the service asks the kernel which process is at the other end.
"""

from enum import StrEnum

import msgspec

from milligpu.model.errors import BadFormat, BadRequest, MilligpuError, NoCapacity, Unavailable
from milligpu.model.policy import SharePolicy
from milligpu.wire.status import MachineStatus

# Command lines and statuses are far smaller; a faulty client must not fill the service's memory.
LINE_MAX = 4 << 20
# How many holders a message for people names.
_NAMED = 3


class SessionMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """One line. `kind` says which message it is."""


class RequestShare(SessionMessage, frozen=True, tag="take"):
    """Ask for a share for the sending process, for as long as it runs."""

    command: list[str]
    count: int = 1
    milli: int | None = None
    mib: int | None = None
    limit: int | None = None
    policy: SharePolicy | None = None
    priority: int = 0
    wait: bool = True
    gpus: list[str] | None = None
    """The GPUs on which the share must be; None: whichever fit."""


class ResizeShare(SessionMessage, frozen=True, tag="resize"):
    """Change the share of a running session; None leaves a part as it is."""

    session: str
    milli: int | None = None
    mib: int | None = None
    limit: int | None = None


class ReadStatus(SessionMessage, frozen=True, tag="ask"):
    """Ask for the machine's status."""


Request = RequestShare | ResizeShare | ReadStatus


class ShareGranted(SessionMessage, frozen=True, tag="granted"):
    """The share is granted; `folder` has the limits library and the pages."""

    session: str
    folder: str
    gpus: list[str]
    whole: bool
    softgpu: str | None = None
    """The directory of the software GPU's sockets; None for NVIDIA's GPUs."""


class ShareQueued(SessionMessage, frozen=True, tag="queued"):
    """The command waits. Sent again whenever one of the fields changes."""

    message: str
    """Why no GPU fits now."""
    behind: list[str]
    """The commands before it in the queue."""
    holders: list[str]
    """The sessions that hold shares now."""

    @property
    def line(self) -> str:
        """Say in one line what it waits for."""
        text = self.message
        if self.holders:
            more = len(self.holders) - _NAMED
            text += f"; held by {', '.join(self.holders[:_NAMED])}" + (f" and {more} more" if more > 0 else "")
        if self.behind:
            text += f"; number {len(self.behind) + 1} in the queue, behind {self.behind[-1]}"
        return text


class ErrorKind(StrEnum):
    """The kind of error of a refused request, which decides the exit code."""

    BAD_REQUEST = "bad-request"
    NO_CAPACITY = "no-capacity"
    UNAVAILABLE = "unavailable"


class RequestRefused(SessionMessage, frozen=True, tag="refused"):
    """The request is refused."""

    error: ErrorKind
    message: str
    hint: str = ""
    field: str = ""
    value: str | None = None
    want: str = ""


class StatusRead(SessionMessage, frozen=True, tag="status"):
    """The answer to ReadStatus."""

    status: MachineStatus


class ShareResized(SessionMessage, frozen=True, tag="done"):
    message: str


Answer = ShareGranted | ShareQueued | RequestRefused | StatusRead | ShareResized


def encode(message: SessionMessage) -> bytes:
    return msgspec.json.encode(message) + b"\n"


_REQUEST: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_ANSWER: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def decode_request(line: bytes) -> Request:
    try:
        return _REQUEST.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad_line("request", error) from None


def decode_answer(line: bytes) -> Answer:
    try:
        return _ANSWER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad_line("answer", error) from None


def _bad_line(name: str, error: Exception) -> BadFormat:
    return BadFormat(
        name,
        str(error),
        hint="the session service is of another milligpu version: end all sessions, then try again",
    )


def refusal(error: MilligpuError) -> RequestRefused:
    """Turn an error into a message."""
    match error:
        case BadRequest():
            value = None if error.value is None else str(error.value)
            return RequestRefused(ErrorKind.BAD_REQUEST, error.message, error.hint, error.field, value, error.want)
        case NoCapacity():
            return RequestRefused(ErrorKind.NO_CAPACITY, error.message, error.hint)
        case _:
            return RequestRefused(ErrorKind.UNAVAILABLE, error.message, error.hint)


def to_error(refused: RequestRefused) -> MilligpuError:
    """Turn the message back into the error."""
    match refused.error:
        case ErrorKind.BAD_REQUEST:
            return BadRequest(refused.field, refused.value, refused.want, hint=refused.hint)
        case ErrorKind.NO_CAPACITY:
            return NoCapacity(refused.message, hint=refused.hint)
        case ErrorKind.UNAVAILABLE:
            return Unavailable(refused.message, hint=refused.hint)
