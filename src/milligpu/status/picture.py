"""A machine or a cluster at one moment, in one form: what the dashboard, `advise` and `cost` look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from milligpu.model.units import WHOLE
from milligpu.status.queue_values import ClusterQueues
from milligpu.wire.status import GpuStatus, ProcessUsage, SessionStatus, ShareUsage, Violation


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A pod or command that requests a share and holds none."""

    namespace: str
    name: str
    """The pod, or the command's program."""
    user: str
    """Of a command."""
    request: str
    message: str
    position: int
    """Among all that wait, from 1."""
    queue: str = ""
    """Of a pod that waits for its turn in one."""
    turn: int | None = None
    """The position in that queue, from 1."""


@dataclass(frozen=True, slots=True)
class Picture:
    """All GPUs, the shares on them, and what waits."""

    at: float
    name: str
    cluster: bool
    software: bool
    gpus: Sequence[GpuStatus]
    shares: Sequence[ShareUsage]
    waiting: Sequence[WaitingRequest] = ()
    sessions: Mapping[str, SessionStatus] = field(default_factory=dict[str, SessionStatus])
    processes: Sequence[ProcessUsage] = ()
    violations: Sequence[Violation] = ()
    problems: Sequence[str] = ()
    """What a reader must know to understand the numbers, one sentence each."""
    users: Mapping[str, str] = field(default_factory=dict[str, str])
    """The user of each session, by session ID."""
    queues: ClusterQueues = field(default_factory=ClusterQueues)

    def owner(self, use: ShareUsage) -> str:
        """Who pays for a share: the namespace of a pod, the user of a session."""
        return use.namespace if not use.session else self.users.get(use.session, "")

    def queue_and_user(self, use: ShareUsage) -> tuple[str, str]:
        """The queue of a pod's share and the user whom it counts for there; of a session, its user."""
        if use.session:
            return "", self.users.get(use.session, "")
        return self.queues.of_pods.get((use.namespace, use.pod), ("", ""))

    def gpu(self, uuid: str) -> GpuStatus | None:
        """The GPU with this UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def on_gpu(self, uuid: str) -> list[ShareUsage]:
        """The shares of one GPU, largest first."""
        found = [use for use in self.shares if use.gpu == uuid]
        return sorted(found, key=lambda use: (-use.milli, use.namespace, use.pod, use.session))


def share_key(use: ShareUsage) -> str:
    """The key of a share's history. Kubernetes' names contain no slash."""
    if use.session:
        return f"session/{use.session}/{use.gpu}"
    return f"pod/{use.namespace}/{use.pod}/{use.container}/{use.gpu}"


def gpu_key(uuid: str) -> str:
    """The key of a GPU's history."""
    return f"gpu/{uuid}"


def holder_name(use: ShareUsage) -> str:
    """What people call the holder of a share."""
    return f"session {use.session}" if use.session else f"{use.namespace}/{use.pod}"


def shares_by_gpu(picture: Picture) -> dict[str, list[ShareUsage]]:
    """The shares of each GPU, by UUID; for thousands of GPUs, one look at each share."""
    found: dict[str, list[ShareUsage]] = {}
    for use in picture.shares:
        found.setdefault(use.gpu, []).append(use)
    return found


def used_of_card(gpu: GpuStatus, shares: Sequence[ShareUsage]) -> float | None:
    """Fraction of a card that is used of this GPU now; None is unknown. `shares` are those on this GPU.

    The tenants' measured time counts. Where nobody measures, it is what the driver says.
    """
    known = [use.utilization for use in shares if use.utilization is not None]
    if known:
        return sum(known)
    return None if gpu.utilization is None else gpu.utilization * gpu.milli / WHOLE
