"""What a machine's GPUs are used for now: sent by the session service to its clients and by the agent as `/stats`.

Amounts are in base units: milli-GPU and MiB as granted, bytes and nanoseconds as measured. None is unknown, not 0.
"""

from collections.abc import Iterable

import msgspec

from milligpu.model.errors import BadFormat
from milligpu.model.policy import SharePolicy
from milligpu.model.reasons import ViolationKind
from milligpu.model.units import BYTES_PER_MIB, WHOLE
from milligpu.wire.documents import Document, DocumentFormat, DocumentPart, encode

STATUS = DocumentFormat("status")


class AcceleratorStats(DocumentPart, frozen=True):
    """One GPU of one container or session, in the fields of Kubernetes' AcceleratorStats."""

    make: str
    model: str
    id: str
    """The GPU's UUID."""
    memoryTotal: int
    """The memory limit in bytes."""
    memoryUsed: int | None = None
    """In bytes."""
    dutyCycle: int | None = None
    """Percent of the GPU's own time."""


class ShareUsage(DocumentPart, frozen=True):
    """What one container or session holds of one GPU, and uses of it."""

    accelerator: AcceleratorStats
    milli: int
    limit: int
    mib: int
    whole: bool = False
    namespace: str = ""
    pod: str = ""
    container: str = ""
    session: str = ""
    """Of a command that holds the share without a pod; then `namespace`, `pod` and `container` are empty."""
    node: str = ""
    """In the status of a cluster."""
    memory_peak: int | None = None
    utilization: float | None = None
    """Compute in use within the last seconds, 0 to 1, where 1 is all the time of a whole card, as for `milli`."""
    waiting: bool | None = None
    """Whether it wants the GPU now while another tenant has it."""
    gpu_time_ns: int | None = None
    """Time of a whole card: two seconds of a vGPU of half a card are one."""
    waiting_ns: int | None = None
    throttled_ns: int | None = None
    """Part of the waiting time: because of its own limit."""
    refusals: int | None = None
    """Allocations beyond the memory limit."""
    energy: float | None = None
    """Joules: its part of the GPU's idle energy, and what the GPU used more while it had the GPU."""
    power: float | None = None
    """Watts within the last seconds, likewise."""

    @property
    def gpu(self) -> str:
        return self.accelerator.id

    @property
    def memory_limit(self) -> int:
        return self.accelerator.memoryTotal

    @property
    def memory_used(self) -> int | None:
        return self.accelerator.memoryUsed


class GpuStatus(DocumentPart, frozen=True):
    """One GPU and what is free of it."""

    index: int
    uuid: str
    model: str
    milli: int
    mib: int
    free_milli: int
    free_mib: int
    node: str = ""
    """In the status of a cluster."""
    state: str = "ok"
    message: str = ""
    """Why it is not `ok`."""
    memory_used: int | None = None
    """Bytes in use by all processes, as the driver counts them."""
    utilization: float | None = None
    """Fraction of the time in which its tenants used it, 0 to 1."""
    policy: SharePolicy | None = None
    """How the GPU's time is divided; None if the machine does not say."""
    temperature: int | None = None
    """In degrees Celsius."""
    power: float | None = None
    """In watts."""
    throttled: dict[str, float] | None = None
    """Seconds with reduced clocks by reason, a counter."""
    xids: int | None = None
    """Errors that the driver reported since the agent started, a counter."""


def gpu_utilization(shares: Iterable[ShareUsage], uuid: str, milli: int) -> float | None:
    """Return the fraction of a GPU's own time that its tenants use; `milli` is its compute. None is unknown."""
    busy = [use.utilization for use in shares if use.gpu == uuid and use.utilization is not None]
    return sum(busy) * WHOLE / milli if busy else None


class ProcessUsage(DocumentPart, frozen=True):
    """A process on a GPU as the driver counts it, and the pod or session that it belongs to, if any."""

    gpu: str
    pid: int
    """On the machine."""
    name: str = ""
    memory: int | None = None
    """In bytes."""
    utilization: float | None = None
    """Fraction of a card's time within the last second, 0 to 1: all the time of a vGPU of half a card is 0.5."""
    namespace: str = ""
    pod: str = ""
    session: str = ""
    node: str = ""
    """In the status of a cluster."""


class SessionStatus(DocumentPart, frozen=True):
    """One command that holds a share."""

    id: str
    pid: int
    uid: int
    command: list[str]
    since: float
    """Seconds since 1970."""
    priority: int = 0


class WaitingSession(DocumentPart, frozen=True):
    """One command in the session queue."""

    pid: int
    uid: int
    command: list[str]
    request: str
    """The share that it asks for, as a person would say it."""
    message: str
    """Why it waits."""
    behind: list[str] = msgspec.field(default_factory=list[str])
    """The commands before it in the queue."""


class Violation(DocumentPart, frozen=True):
    """A process or tenant that uses a GPU beyond its grant, as the audit found it."""

    kind: ViolationKind
    gpu: str
    tenant: str | None
    pid: int | None
    message: str

    @property
    def key(self) -> tuple[ViolationKind, str, str | None, int | None]:
        """What identifies the violation while its numbers change."""
        return self.kind, self.gpu, self.tenant, self.pid


class MachineStatus(Document, frozen=True):
    """All GPUs of one machine, the shares on them, and the commands that wait."""

    machine: str
    gpus: list[GpuStatus]
    software: bool = False
    """Whether these are software GPUs."""
    shares: list[ShareUsage] = msgspec.field(default_factory=list[ShareUsage])
    sessions: list[SessionStatus] = msgspec.field(default_factory=list[SessionStatus])
    waiting: list[WaitingSession] = msgspec.field(default_factory=list[WaitingSession])
    processes: list[ProcessUsage] = msgspec.field(default_factory=list[ProcessUsage])
    violations: list[Violation] = msgspec.field(default_factory=list[Violation])
    """Those that exist now."""
    violation_counts: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """All since the service started, by kind."""
    driver: str = ""
    """The version of the GPUs' driver; empty where the machine does not say."""
    cuda: str = ""
    """The newest version of CUDA that the driver supports, likewise."""


def encode_status(status: MachineStatus) -> bytes:
    return encode(status).encode()


def decode_status(text: bytes) -> MachineStatus:
    """Read a status; an agent of version 0.1.0 sends a list of containers instead."""
    if text.lstrip().startswith(b"["):
        return _decode_list(text)
    return STATUS.decode(text, MachineStatus)


class _OldAccelerator(msgspec.Struct):
    make: str
    model: str
    id: str
    memoryTotal: int
    memoryUsed: int | None
    dutyCycle: int | None
    waiting: bool | None


class _OldContainer(msgspec.Struct):
    namespace: str
    pod: str
    container: str
    accelerators: list[_OldAccelerator]


def _decode_list(text: bytes) -> MachineStatus:
    try:
        containers = msgspec.json.decode(text, type=list[_OldContainer])
    except msgspec.DecodeError as error:
        raise BadFormat(STATUS.name, str(error)) from None
    shares = [
        ShareUsage(
            AcceleratorStats(one.make, one.model, one.id, one.memoryTotal, one.memoryUsed, one.dutyCycle),
            milli=0,
            limit=0,
            mib=one.memoryTotal // BYTES_PER_MIB,
            namespace=each.namespace,
            pod=each.pod,
            container=each.container,
            utilization=None if one.dutyCycle is None else one.dutyCycle / 100,
            waiting=one.waiting,
        )
        for each in containers
        for one in each.accelerators
    ]
    return MachineStatus(STATUS.version, "", [], shares=shares)
