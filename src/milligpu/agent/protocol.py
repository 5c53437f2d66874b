"""What a command and the agent say to each other: one JSON object per line, over a unix socket.

Who asks is never part of a message: the kernel tells the agent who is at the other end.
"""

from enum import StrEnum

import msgspec

from milligpu.agent.audit import Offence
from milligpu.model.errors import BadFormat, BadRequest, MilligpuError, NoCapacity, Unavailable
from milligpu.model.qos import Policy

# A command line and a machine's state are far smaller; a mistaken client should not fill our memory.
LINE_MAX = 4 << 20
# Of those who hold a GPU so many are named in a line for people.
_NAMED = 3


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """One line."""


class Take(Message, frozen=True, tag="take"):
    """Give the process that asks a share, for as long as it lives."""

    command: list[str]
    count: int = 1
    milli: int | None = None
    mib: int | None = None
    limit: int | None = None
    policy: Policy | None = None
    priority: int = 0
    wait: bool = True


class Resize(Message, frozen=True, tag="resize"):
    """Change a running session's share; what is left out stays."""

    session: str
    milli: int | None = None
    mib: int | None = None
    limit: int | None = None


class Ask(Message, frozen=True, tag="ask"):
    """How does everything stand?"""


Request = Take | Resize | Ask


class Granted(Message, frozen=True, tag="granted"):
    """The share is yours; `folder` holds the libraries that show it."""

    session: str
    folder: str
    gpus: list[str]
    whole: bool
    softgpu: str | None = None
    """The folder of the software GPU's sockets, when that is what it is."""


class Queued(Message, frozen=True, tag="queued"):
    """Not yet. Sent again whenever it changes."""

    reason: str
    behind: list[str]
    """Sessions that wait and come first."""
    holders: list[str]
    """Sessions that hold what is wanted."""

    @property
    def line(self) -> str:
        """For what it waits, and behind whom."""
        text = self.reason
        if self.holders:
            more = len(self.holders) - _NAMED
            text += f"; held by {', '.join(self.holders[:_NAMED])}" + (f" and {more} more" if more > 0 else "")
        if self.behind:
            text += f"; number {len(self.behind) + 1} in the queue, behind {self.behind[-1]}"
        return text


class Trouble(StrEnum):
    """Which kind of error a refusal is."""

    BAD_REQUEST = "bad-request"
    NO_CAPACITY = "no-capacity"
    UNAVAILABLE = "unavailable"


class Refused(Message, frozen=True, tag="refused"):
    """No, and why."""

    trouble: Trouble
    message: str
    hint: str = ""
    field: str = ""
    value: str = ""
    want: str = ""


class Use(Message, frozen=True, tag="use"):
    """What a session has of one GPU and makes of it."""

    gpu: str
    milli: int
    limit: int
    mib: int
    whole: bool = False
    used_mib: float | None = None
    peak_mib: float | None = None
    measured: float | None = None
    """The part of the GPU's time that it had of late, 0 to 1; None when nobody measured."""
    refusals: int = 0
    """Allocations beyond the cap."""


class Running(Message, frozen=True, tag="running"):
    """A session."""

    id: str
    pid: int
    uid: int
    command: list[str]
    since: float
    policy: Policy
    priority: int
    uses: list[Use]


class Waiter(Message, frozen=True, tag="waiter"):
    """Somebody in the queue."""

    pid: int
    uid: int
    command: list[str]
    asks: str
    reason: str
    behind: list[str]


class Card(Message, frozen=True, tag="card"):
    """A GPU of this machine."""

    index: int
    uuid: str
    model: str
    milli: int
    mib: int
    free_milli: int
    free_mib: int
    used_mib: float | None = None
    """As the driver says, whoever uses it."""
    policy: Policy | None = None
    """None while nobody is on it."""


class Outside(Message, frozen=True, tag="outside"):
    """Somebody whom the audit found using a GPU beyond what was granted."""

    offence: Offence
    gpu: str
    session: str | None
    pid: int | None
    detail: str


class State(Message, frozen=True, tag="state"):
    """How everything stands."""

    software: bool
    gpus: list[Card]
    sessions: list[Running]
    waiting: list[Waiter]
    outside: list[Outside]
    found_outside: dict[str, int]
    """How many the audit has found, by offence."""


class Done(Message, frozen=True, tag="done"):
    """It was done."""

    message: str


Answer = Granted | Queued | Refused | State | Done


def encode(message: Message) -> bytes:
    """A line."""
    return msgspec.json.encode(message) + b"\n"


_REQUEST: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_ANSWER: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def decode_request(line: bytes) -> Request:
    """Read what a client asks."""
    try:
        return _REQUEST.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _strange("request", error) from None


def decode_answer(line: bytes) -> Answer:
    """Read what the agent says."""
    try:
        return _ANSWER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _strange("answer", error) from None


def _strange(name: str, error: Exception) -> BadFormat:
    return BadFormat(name, str(error), hint="another version of milligpu runs here: end its sessions first")


def refusal(error: MilligpuError) -> Refused:
    """An error as a message."""
    match error:
        case BadRequest():
            return Refused(
                Trouble.BAD_REQUEST, error.message, error.hint, error.field, str(error.value), error.want
            )
        case NoCapacity():
            return Refused(Trouble.NO_CAPACITY, error.message, error.hint)
        case _:
            return Refused(Trouble.UNAVAILABLE, error.message, error.hint)


def error(refused: Refused) -> MilligpuError:
    """The same error at the other end."""
    match refused.trouble:
        case Trouble.BAD_REQUEST:
            return BadRequest(refused.field, refused.value, refused.want, hint=refused.hint)
        case Trouble.NO_CAPACITY:
            return NoCapacity(refused.message, hint=refused.hint)
        case Trouble.UNAVAILABLE:
            return Unavailable(refused.message, hint=refused.hint)
