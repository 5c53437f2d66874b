"""What a Node object says about milligpu's agent and GPUs: two entries of `status.conditions`.

Agents send no heartbeat. An agent is registered with the kubelet as a device plugin; when its connection ends, the
kubelet reports none of its slots as allocatable. So 5,000 agents cost the API server nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from milligpu.model import names
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.reasons import EventReason
from milligpu.wire.kubernetes import KubeCondition, Taint

_HELP = "start `milligpu agent` on the node, or read its log"


class NodeConditionType(StrEnum):
    """The conditions that the scheduler writes."""

    AGENT_READY = names.AGENT_READY
    GPUS_HEALTHY = names.GPUS_HEALTHY


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """One condition of a node."""

    type: NodeConditionType
    good: bool
    reason: str
    message: str
    since: str = ""
    """The time of its last transition, in Kubernetes' format; empty if the condition is not written yet."""

    def agrees(self, other: "NodeCondition | None") -> bool:
        """Whether the other condition says the same."""
        return other is not None and (self.good, self.message) == (other.good, other.message)


def read_conditions(conditions: Iterable[KubeCondition]) -> tuple[NodeCondition, ...]:
    """Read milligpu's own conditions among all conditions of a node."""
    return tuple(
        NodeCondition(
            NodeConditionType(each.type),
            each.status == "True",
            each.reason,
            each.message,
            each.lastTransitionTime or "",
        )
        for each in conditions
        if each.type in set(NodeConditionType)
    )


def suspended_until(taints: Iterable[Taint], conditions: Iterable[KubeCondition]) -> str | None:
    """Return what the Node object says about its suspended VM; None if it has no taint of it."""
    if not any(each.key == names.SUSPENDED for each in taints):
        return None
    for each in conditions:
        if each.type == names.SUSPENDED_CONDITION and each.status == "True":
            return each.message
    return "the VM of this node is about to be suspended, or to take pods again"


def is_agent_ready(gpus: Sequence[Gpu], slots: Sequence[str | None]) -> bool | None:
    """Whether a node's agent answers its kubelet; None if the Node object does not show it.

    `slots` is what the kubelet reports as allocatable of our two resources. Nothing is allocatable either while
    every GPU is unhealthy, cordoned or reserved: then the agent has nothing to offer.
    """
    if any(count not in {None, "0"} for count in slots):
        return True
    offers = any(gpu.state is GpuState.OK and gpu.allocatable for gpu in gpus)
    return False if offers and "0" in slots else None


def wanted_conditions(gpus: Sequence[Gpu], ready: bool | None) -> tuple[NodeCondition, ...]:
    """Return the conditions that the node should have; none about GPUs while the agent is away."""
    if not gpus:
        return ()
    if ready is False:
        message = f"The kubelet has no agent for this node's GPUs, so they get no new shares: {_HELP}"
        return (NodeCondition(NodeConditionType.AGENT_READY, False, EventReason.AGENT_AWAY, message),)
    found = [_health(gpus)]
    if ready:
        message = "The agent is registered with the kubelet"
        found.append(NodeCondition(NodeConditionType.AGENT_READY, True, EventReason.AGENT_READY, message))
    return tuple(found)


def _health(gpus: Sequence[Gpu]) -> NodeCondition:
    bad = [f"{gpu.uuid} ({gpu.message})" for gpu in gpus if gpu.state is GpuState.UNHEALTHY]
    if not bad:
        good = f"{len(gpus)} GPUs are healthy" if len(gpus) > 1 else "The GPU is healthy"
        return NodeCondition(NodeConditionType.GPUS_HEALTHY, True, EventReason.GPUS_HEALTHY, good)
    message = f"{len(bad)} of {len(gpus)} GPUs are unhealthy and get no new shares: {', '.join(bad)}"
    return NodeCondition(NodeConditionType.GPUS_HEALTHY, False, EventReason.GPU_UNHEALTHY, message)


def describe_absence(conditions: Iterable[NodeCondition]) -> str:
    """Say since when a node's agent has not answered, if the Node object has the time, and what to do."""
    since = [each.since for each in conditions if each.type is NodeConditionType.AGENT_READY and not each.good]
    return f"the agent does not answer{f' since {since[0]}' if since else ''}: {_HELP}"
