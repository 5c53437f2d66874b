"""GPUs as a node reports them, and nodes as the scheduler sees them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from milligpu.model.errors import BadRequest
from milligpu.model.qos import Policy
from milligpu.model.units import WHOLE, Mib, Milli


class Mode(StrEnum):
    """In which way a card is handed out; it has one at a time."""

    SHARE = "share"
    """In milli-GPU."""
    WHOLE = "whole"
    """Only as a whole, untouched."""
    MIG = "mig"
    """In the hardware's own partitions."""
    MPS = "mps"
    """In milli-GPU, side by side through NVIDIA's multi-process service."""


class State(StrEnum):
    """Whether new shares may go to a card."""

    OK = "ok"
    CORDONED = "cordoned"
    """An admin took it out; those who hold a share keep it."""
    SICK = "sick"
    """Its health checks fail; it returns by itself when they pass."""


class Capability(NamedTuple):
    """A CUDA compute capability; compares as numbers do, so 10.0 is above 9.0."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


_CAPABILITY = re.compile(r"(\d{1,3})\.(\d{1,2})")


def parse_capability(field_: str, value: object) -> Capability:
    """Read a compute capability such as 8.0."""
    match = _CAPABILITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise BadRequest(field_, value, "a compute capability such as 7.0 or 8.6")
    return Capability(int(match[1]), int(match[2]))


class Link(NamedTuple):
    """The best path between two cards: `NV` with its number of NVLinks, else the nearest common bridge."""

    kind: str
    lanes: int

    def __str__(self) -> str:
        return f"{self.kind}{self.lanes}" if self.is_nvlink else self.kind

    @property
    def is_nvlink(self) -> bool:
        """Whether it is a direct NVLink, as `nvlink` in a requirement means it."""
        return self.kind == "NV"


# From near to far, as nvidia-smi's topology matrix names them.
LINK_KINDS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
_LINK = re.compile(r"NV([1-9]\d?)|PIX|PXB|PHB|NODE|SYS")


def parse_link(field_: str, value: object) -> Link:
    """Read a link as nvidia-smi writes it: NV2, PIX, PXB, PHB, NODE or SYS."""
    match = _LINK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise BadRequest(field_, value, "NV1 to NV99, PIX, PXB, PHB, NODE or SYS")
    return Link("NV", int(match[1])) if match[1] else Link(match[0], 0)


_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z-]{0,42}")
UUID_MAX = 47
"""The longest UUID; the limits page has 48 bytes for one with its end."""


def parse_uuid(field_: str, value: object) -> str:
    """Read a GPU's UUID in NVIDIA's form."""
    if not (isinstance(value, str) and _UUID.fullmatch(value)):
        raise BadRequest(field_, value, f"a UUID such as GPU-1f2e…, at most {UUID_MAX} letters, digits and '-'")
    return value


_TOKEN = re.compile(r"[a-z0-9.]+")


def model_matches(wanted: str, model: str) -> bool:
    """Whether a card's product name is what a person calls it: V100 is "Tesla V100-SXM2-16GB", A10 is no A100."""
    want, have = _TOKEN.findall(wanted.lower()), _TOKEN.findall(model.lower())
    return bool(want) and any(have[i : i + len(want)] == want for i in range(len(have) - len(want) + 1))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card of a node: what it has, not what is free of it."""

    uuid: str
    model: str
    mib: Mib
    milli: Milli = WHOLE
    """1000, or less for a vGPU: a VM with half a card has 500."""
    reserved: Milli = Milli(0)
    """Set aside for plain commands on the node, with the same part of the memory; pods never get it."""
    numa: int = 0
    capability: Capability = Capability(7, 0)
    ecc: bool = False
    links: Mapping[str, Link] = field(default_factory=dict[str, Link], hash=False)
    policy: Policy = Policy.FIXED
    mode: Mode = Mode.SHARE
    state: State = State.OK
    reason: str = ""

    @property
    def usable(self) -> Milli:
        """What is not set aside."""
        return Milli(self.milli - self.reserved)

    @property
    def usable_mib(self) -> Mib:
        """The same part of its memory; rounded down, so that both parts are never more than the card."""
        return self.mib_of(self.usable)

    def mib_of(self, milli: int) -> Mib:
        """That fraction of the physical card's memory; a half-card's 500 milli are all it has."""
        return Mib(self.mib * milli // self.milli)

    def milli_of(self, mib: int) -> Milli:
        """That fraction of the card's compute, rounded down: three thirds of the memory are at most one GPU."""
        return Milli(max(1, self.milli * mib // self.mib))


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with its cards and the ordinary resources that pods also need."""

    name: str
    gpus: tuple[Gpu, ...]
    cpu_milli: int = 0
    memory_mib: int = 0
    labels: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
