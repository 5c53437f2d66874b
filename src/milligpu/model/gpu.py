"""GPUs as a node reports them, and nodes as the scheduler sees them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from milligpu.model.errors import BadRequest
from milligpu.model.policy import DEFAULT_POLICY, SharePolicy
from milligpu.model.units import WHOLE, Mib, Milli
from milligpu.model.versions import DottedVersion


class SharingMode(StrEnum):
    """How a GPU is shared; a GPU has one mode at a time."""

    SHARE = "share"
    """Several holders share it, in milli-GPU."""
    WHOLE = "whole"
    """One holder has the whole GPU."""
    MIG = "mig"
    """It is divided into hardware partitions (MIG)."""


class GpuState(StrEnum):
    """Whether new shares may go to a GPU."""

    OK = "ok"
    CORDONED = "cordoned"
    """Cordoned by an admin; pods that hold a share keep it."""
    UNHEALTHY = "unhealthy"
    """Its health checks fail; it is offered again when they pass."""
    NO_AGENT = "no-agent"
    """The node has no agent. The scheduler sets this state; no inventory contains it."""
    SUSPENDED = "suspended"
    """The node's VM is suspended by its layout. The scheduler sets this state, too."""


class ComputeCapability(NamedTuple):
    """A CUDA compute capability; compares by number, so 10.0 is above 9.0."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


_CAPABILITY = re.compile(r"(\d{1,3})\.(\d{1,2})")


def parse_capability(field_: str, value: object) -> ComputeCapability:
    """Read a compute capability such as 8.0."""
    match = _CAPABILITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise BadRequest(field_, value, "a compute capability such as 7.0 or 8.6")
    return ComputeCapability(int(match[1]), int(match[2]))


class GpuLink(NamedTuple):
    """The best path between two GPUs: `NV` with the number of NVLinks, else the nearest common bridge."""

    kind: str
    lanes: int

    def __str__(self) -> str:
        return f"{self.kind}{self.lanes}" if self.is_nvlink else self.kind

    @property
    def is_nvlink(self) -> bool:
        """Whether it is a direct NVLink, which the requirement `nvlink` asks for."""
        return self.kind == "NV"


# From near to far, as nvidia-smi's topology matrix names them.
LINK_KINDS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
_LINK = re.compile(r"NV([1-9]\d?)|PIX|PXB|PHB|NODE|SYS")


def parse_link(field_: str, value: object) -> GpuLink:
    """Read a link as nvidia-smi writes it: NV2, PIX, PXB, PHB, NODE or SYS."""
    match = _LINK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise BadRequest(field_, value, "NV1 to NV99, PIX, PXB, PHB, NODE or SYS")
    return GpuLink("NV", int(match[1])) if match[1] else GpuLink(match[0], 0)


_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z-]{0,42}")
UUID_MAX = 47
"""Length of the longest UUID; the limits page has 48 bytes for a UUID and a zero byte."""


def parse_uuid(field_: str, value: object) -> str:
    """Read a GPU's UUID in NVIDIA's form."""
    if not (isinstance(value, str) and _UUID.fullmatch(value)):
        raise BadRequest(field_, value, f"a UUID such as GPU-1f2e…, at most {UUID_MAX} letters, digits and '-'")
    return value


_LONG_UUID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]{27}")


def short_uuid(uuid: str) -> str:
    """A UUID as messages show it: NVIDIA's long form up to its first dash, which every command accepts."""
    match = _LONG_UUID.fullmatch(uuid)
    return match[1] if match else uuid


_TOKEN = re.compile(r"[a-z0-9.]+")


def model_matches(wanted: str, model: str) -> bool:
    """Whether a short name means a GPU's product name: V100 is "Tesla V100-SXM2-16GB", A10 is not A100."""
    want, have = _TOKEN.findall(wanted.lower()), _TOKEN.findall(model.lower())
    return bool(want) and any(have[i : i + len(want)] == want for i in range(len(have) - len(want) + 1))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node: its capacity, not what is free."""

    uuid: str
    model: str
    mib: Mib
    milli: Milli = WHOLE
    """1000, or less for a vGPU: a vGPU of half a card has 500."""
    reserved: Milli = Milli(0)
    """Reserved for sessions on the node, with the same part of the memory; pods never get it."""
    limit: Milli = WHOLE
    """The most compute that one tenant may use, unless its share is larger."""
    numa: int = 0
    capability: ComputeCapability = ComputeCapability(7, 0)
    ecc: bool = False
    links: Mapping[str, GpuLink] = field(default_factory=dict[str, GpuLink], hash=False)
    policy: SharePolicy = DEFAULT_POLICY
    mode: SharingMode = SharingMode.SHARE
    state: GpuState = GpuState.OK
    message: str = ""
    driver: DottedVersion | None = None
    """Version of the node's driver; None where it is unknown."""
    cuda: DottedVersion | None = None
    """The latest version of CUDA that the driver supports, as nvidia-smi shows it."""

    @property
    def allocatable(self) -> Milli:
        """The compute that is not reserved."""
        return Milli(self.milli - self.reserved)

    @property
    def allocatable_mib(self) -> Mib:
        """The same part of its memory, rounded down, so that both parts never exceed the GPU."""
        return self.mib_of(self.allocatable)

    def mib_of(self, milli: int) -> Mib:
        """Return this fraction of the card's memory; 500 milli of a vGPU of half a card are all of its memory."""
        return Mib(self.mib * milli // self.milli)

    def milli_of(self, mib: int) -> Milli:
        """Return this fraction of the compute, rounded down: three thirds of the memory are at most one GPU."""
        return Milli(max(1, self.milli * mib // self.mib))

    def time_of(self, milli: int) -> Milli:
        """Convert compute to thousandths of this GPU's own time: 300 milli of a vGPU of half a card are 600."""
        return Milli(min(WHOLE, WHOLE * milli // self.milli))

    def milli_of_time(self, time: int) -> Milli:
        """Convert back; rounded up, so that every amount that the GPU can give survives both conversions."""
        return Milli(-(-self.milli * time // WHOLE))


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its GPUs, and with the CPU and memory that pods also need."""

    name: str
    gpus: tuple[Gpu, ...]
    cpu_milli: int = 0
    memory_mib: int = 0
