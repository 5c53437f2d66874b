"""What a container of this node was promised, and what it holds: the values behind the two stores. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import ContainerKind, ContainerRef

CDI_KIND = "milligpu.dev/share"


@dataclass(frozen=True, slots=True)
class Allocation:
    """One answer to the kubelet's Allocate: the device slots of one resource for one container."""

    name: str
    number: int
    """Counts up: of two allocations with the same slots, the later one is of the container that has them now."""
    resource: str
    slots: frozenset[str]

    @property
    def device(self) -> str:
        """The name of the CDI device."""
        return f"{CDI_KIND}={self.name}"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A container that has its CDI file. It holds its shares until its processes end, even if its pod is gone."""

    name: str
    """The name of its allocation."""
    holder: ContainerRef
    grant: Grant
    """The grant of the whole pod."""
    kinds: Mapping[str, ContainerKind] = field(hash=False)
    """The pod's containers, in the order in which they start."""

    @property
    def shares(self) -> tuple[GpuShare, ...]:
        """What this container holds of each of its GPUs."""
        return self.grant.containers[self.holder.container]

    @property
    def whole(self) -> bool:
        """Whether the container has whole GPUs."""
        return any(held.share.whole for held in self.shares)

    def uses(self, gpu: str) -> bool:
        """Whether the container holds a share of this GPU."""
        return any(held.gpu == gpu for held in self.shares)
