"""Queues, their waiting pods and users, and calendars, as commands and pages show them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue: what it may have, has and waits for."""

    name: str
    parent: str
    order: str
    weight: int
    guarantee_milli: int | None
    ceiling_milli: int | None
    held_milli: int
    held_mib: int
    waiting: int
    ready: bool
    problem: str = ""


@dataclass(frozen=True, slots=True)
class QueuedPodStatus:
    """One waiting pod of a queue."""

    position: int
    namespace: str
    pod: str
    user: str
    milli: int
    mib: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class QueueUserStatus:
    """What one user of a queue has, and had of late."""

    queue: str
    user: str
    held_milli: int
    average_milli: float
    waiting: int


@dataclass(frozen=True, slots=True)
class CalendarSummary:
    """One calendar."""

    name: str
    layout: str
    """The one that holds; empty before the scheduler service saw the calendar."""
    next_layout: str
    next_at: str
    """In the calendar's time zone."""
    state: str
    """The reason of its condition."""
    message: str


@dataclass(frozen=True, slots=True)
class ClusterQueues:
    """The queues of a cluster, their users, and the queue and user of every pod that is in one."""

    queues: Sequence[QueueStatus] = ()
    users: Sequence[QueueUserStatus] = ()
    of_pods: Mapping[tuple[str, str], tuple[str, str]] = field(
        default_factory=dict[tuple[str, str], tuple[str, str]]
    )
    """By namespace and pod."""
    calendars: Sequence[CalendarSummary] = ()
