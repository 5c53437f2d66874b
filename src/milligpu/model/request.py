"""What a pod or command requests, in the one form that all code after the dialects uses."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from milligpu.model.affinity import AffinityLabels
from milligpu.model.errors import BadRequest
from milligpu.model.gpu import Gpu
from milligpu.model.group import PodGroup
from milligpu.model.policy import PlacementStrategy, SharePolicy, default_limit
from milligpu.model.requirements import ANY, Requirements
from milligpu.model.units import GPUS_MAX, MIB_MAX, WHOLE, Mib, Milli, show_mib, show_milli


@dataclass(frozen=True, slots=True)
class Share:
    """A share of one GPU, in numbers."""

    milli: Milli
    mib: Mib
    limit: Milli
    """The most compute the holder may use while the GPU is otherwise idle; never below `milli`."""
    whole: bool = False
    """The whole GPU: no other holder, and no limits library."""

    def limit_on(self, policy: SharePolicy, most: Milli = WHOLE) -> Milli:
        """Return the most compute that its holder may use on a GPU of this policy, whose own limit is `most`."""
        return Milli(min(self._limit_by(policy), max(most, self.milli)))

    def _limit_by(self, policy: SharePolicy) -> Milli:
        match policy:
            case SharePolicy.FIXED:
                return Milli(max(1, self.milli))
            case SharePolicy.EQUAL:
                # An equal part replaces the share, so a limit that is only the share is none here.
                return self.limit if self.limit > self.milli else WHOLE
            case SharePolicy.BEST_EFFORT:
                return self.limit
            case _:
                assert_never(policy)


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """The same share of each of `count` GPUs.

    Some dialects leave out compute or memory. Missing compute is the same fraction of the GPU as the memory, and
    missing memory is the same fraction as the compute. `card_memory` is memory as a fraction of whichever GPU the
    share will be on. A whole GPU is all of `gpu_milli` without memory.
    """

    count: int = 1
    milli: Milli | None = None
    mib: Mib | None = None
    card_memory: Milli | None = None
    limit: Milli | None = None
    gpu_milli: Milli = WHOLE
    """What each GPU has: 1000, or less where the pod selects a vGPU that is a part of a card."""

    def __post_init__(self) -> None:
        _check("count", self.count, 1, GPUS_MAX)
        _check("milli", self.milli, 0, WHOLE)
        _check("mib", self.mib, 1, MIB_MAX)
        _check("card_memory", self.card_memory, 1, WHOLE)
        _check("limit", self.limit, max(1, self.milli or 0), WHOLE)
        if self.mib is not None and self.card_memory is not None:
            raise BadRequest("mib", self.mib, "left out if memory is a fraction of the GPU's")
        if self.milli is None and self.mib is None and self.card_memory is None:
            raise BadRequest("milli", None, "compute, memory, or both")
        if self.milli == 0 and self.mib is None and self.card_memory is None:
            raise BadRequest("mib", None, "an amount of memory when no compute is guaranteed")

    @property
    def whole(self) -> bool:
        """Whether it asks for whole GPUs."""
        return self.milli == self.gpu_milli and self.mib is None and self.card_memory is None

    def resolve(self, gpu: Gpu, policy: SharePolicy | None = None) -> Share:
        """The share in this GPU's numbers. `policy` is the request's: it decides the limit if none is given."""
        milli = self.milli
        if self.whole:
            milli = max(gpu.milli, self.gpu_milli)  # a larger GPU than the one that was meant is held whole, too
        if self.mib is not None:
            mib = self.mib
        elif self.card_memory is not None:
            mib = gpu.mib_of(self.card_memory)
        else:
            mib = gpu.mib_of(milli or 0)
        milli = gpu.milli_of(mib) if milli is None else milli
        named = self.limit if policy is not SharePolicy.FIXED else None
        limit = default_limit(policy, milli) if named is None else max(named, milli)
        # A thousandth of a small GPU is still one MiB; memory without compute has a limit above 0.
        return Share(milli, Mib(max(1, mib)), Milli(max(1, limit)), self.whole)


def policy_problem(share: ShareRequest, policy: SharePolicy | None) -> str:
    """What the limit of a share must be under the policy that its request names; empty if the limit is valid."""
    if policy is SharePolicy.FIXED and share.limit not in {None, share.milli}:
        return "left out with the policy fixed, which makes the share the limit"
    if share.milli == 0 and share.limit is None and policy in {None, SharePolicy.FIXED}:
        return "a limit, or the policy best-effort or equal, where no compute is guaranteed"
    return ""


def describe_share(share: ShareRequest) -> str:
    """Describe a request in words: "0.5 GPU with 8Gi", "2 whole GPUs"."""
    if share.whole:
        return "a whole GPU" if share.count == 1 else f"{share.count} whole GPUs"
    parts = [f"{show_milli(share.milli)} GPU"] if share.milli else []
    if share.mib is not None:
        parts.append(show_mib(share.mib))
    return ("" if share.count == 1 else f"{share.count} x ") + " with ".join(parts)


class ContainerKind(StrEnum):
    """When a container runs; the kubelet's rules for adding up resources depend on it."""

    MAIN = "main"
    INIT = "init"
    """Runs before the main ones and ends."""
    SIDECAR = "sidecar"
    """An init container that stays (restartPolicy Always)."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container of a pod requests; a container without a GPU has the share None."""

    name: str
    share: ShareRequest | None
    kind: ContainerKind = ContainerKind.MAIN


@dataclass(frozen=True, slots=True)
class PodRef:
    """Which pod; the uid distinguishes it from a later pod of the same name.

    The kubelet's checkpoint has only the uid: namespace and name are then empty.
    """

    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else self.uid


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """Which container of which pod."""

    pod: PodRef
    container: str

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.pod.uid

    def __str__(self) -> str:
        return f"{self.pod}/{self.container}"


def container_of_uid(uid: str, container: str) -> ContainerRef:
    """Return a container of a pod of which only the uid is known."""
    return ContainerRef(PodRef("", "", uid), container)


@dataclass(frozen=True, slots=True)
class PodRequest:
    """All that placement needs to know about a pod."""

    pod: PodRef
    containers: tuple[ContainerRequest, ...]
    """In the order of the manifest: init containers and sidecars first."""
    dialect: str = "native"
    policy: SharePolicy | None = None
    """What the pod names for itself; see `SharePolicy`."""
    priority: int = 0
    strategy: PlacementStrategy | None = None
    requirements: Requirements = ANY
    gpu_class: str | None = None
    locality: AffinityLabels = field(default_factory=AffinityLabels)
    group: PodGroup | None = None
    floor: Milli | None = None
    """How far each share may be shrunk for other pods; None for a pod that keeps all of its share."""
    cpu_milli: int = 0
    memory_mib: int = 0
    remote: bool = False
    """Whether its GPUs are on a GPU server. Then the pod's CPU and memory do not count where its GPUs are."""

    @property
    def wants_gpu(self) -> bool:
        """Whether any container asks for one."""
        return any(container.share is not None for container in self.containers)


def _check(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise BadRequest(name, value, f"from {low} to {high}")
