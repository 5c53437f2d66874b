"""Why a GPU was not given: a closed set, so that people can look each one up and programs can count them."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """One cause; `docs/reasons.md` says for each what it means and what helps."""

    INSUFFICIENT_CORE = "InsufficientGPUCore"
    """The card has too few milli-GPU free."""
    INSUFFICIENT_MEMORY = "InsufficientGPUMemory"
    """The card has too little memory free."""
    INSUFFICIENT_GPUS = "InsufficientGPUs"
    """The node has too few cards that fit, and the request needs several."""
    TOO_LARGE = "LargerThanGPU"
    """The card is smaller than the request, even when empty."""
    MODEL_MISMATCH = "ModelMismatch"
    """The card is of another model, or one that the request excludes."""
    UUID_MISMATCH = "UUIDMismatch"
    """The request names other cards."""
    MEMORY_SIZE = "CardMemoryTooSmall"
    """The card's total memory is below the required minimum."""
    CAPABILITY = "ComputeCapabilityTooLow"
    """The card's compute capability is below the required minimum."""
    NO_ECC = "NoECC"
    """ECC is required, and the card has none or it is off."""
    NO_NVLINK = "NoNVLink"
    """NVLink between the cards is required, and no such group is free."""
    NUMA_SPLIT = "NUMASplit"
    """Cards on one NUMA node are required, and no node has enough of them free."""
    AFFINITY = "AffinityElsewhere"
    """Pods with the same affinity label are on another card."""
    ANTI_AFFINITY = "AntiAffinity"
    """A pod with the same anti-affinity label is on the card."""
    EXCLUSION = "Exclusion"
    """The card is used under another exclusion label, or under none."""
    POLICY_MISMATCH = "PolicyMismatch"
    """The request names a QoS policy, and the card runs another."""
    MODE_MISMATCH = "ModeMismatch"
    """The card is handed out in another way: only whole, or in hardware partitions."""
    CORDONED = "Cordoned"
    """An admin took the card out of use."""
    SICK = "Unhealthy"
    """The card's health checks fail."""
    NODE_CPU = "InsufficientCPU"
    """The node has a card but too little CPU."""
    NODE_MEMORY = "InsufficientMemory"
    """The node has a card but too little memory of its own."""
    NO_GPU = "NoGPU"
    """The node has no GPU."""
    NODE_EXCLUDED = "NodeExcluded"
    """The pod's node selector, affinity or tolerations keep it from the node."""


# What changes by itself as others leave; all the rest needs a person or another node.
RESOLVABLE = frozenset(
    {
        Reason.INSUFFICIENT_CORE,
        Reason.INSUFFICIENT_MEMORY,
        Reason.INSUFFICIENT_GPUS,
        Reason.NO_NVLINK,
        Reason.NUMA_SPLIT,
        Reason.AFFINITY,
        Reason.ANTI_AFFINITY,
        Reason.EXCLUSION,
        Reason.NODE_CPU,
        Reason.NODE_MEMORY,
    }
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One place that was looked at, and why it will not do; the numbers are of the reason's own unit."""

    reason: Reason
    node: str
    gpu: str = ""
    wanted: int = 0
    best: int = 0

    @property
    def where(self) -> str:
        """The card, or the node where no single card is to blame."""
        return f"{self.node}/{self.gpu}" if self.gpu else self.node
