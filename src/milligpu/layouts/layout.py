"""What a `GpuLayout` says: the settings of cards, for nodes by their labels, and the states of worker VMs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from milligpu.model.card_rules import CardRule
from milligpu.model.machines import Machine, MachineState
from milligpu.wire.node_layout import NodeLayout


@dataclass(frozen=True, slots=True)
class CardGroup:
    """Card rules for the nodes that have all these labels."""

    nodes: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    rule: CardRule = field(default_factory=CardRule)


class PodTreatment(StrEnum):
    """What becomes of the pods of a VM that stops running."""

    KEEP = "keep"
    """Pods that tolerate it are suspended with the VM; the others are evicted."""
    DRAIN = "drain"
    """All pods are evicted."""


@dataclass(frozen=True, slots=True)
class MachineRule:
    """What a layout asks of one worker VM."""

    name: str
    node: str
    """The Kubernetes node that runs in it."""
    state: MachineState
    profile: str = ""
    """Its vGPU profile; empty leaves the present one."""
    pods: PodTreatment = PodTreatment.KEEP

    def satisfied_by(self, found: Machine) -> bool:
        """Whether the VM is as asked. One that is off has released its card, as a suspended one has."""
        states = {self.state}
        if self.state is MachineState.SUSPENDED:
            states.add(MachineState.OFF)
        return found.state in states and self.profile in {"", found.profile}


@dataclass(frozen=True, slots=True)
class CardLayout:
    """A layout of cards."""

    name: str
    groups: tuple[CardGroup, ...] = ()
    machines: tuple[MachineRule, ...] = ()

    def on_node(self, calendar: str, labels: Mapping[str, str]) -> NodeLayout:
        """Return what this layout asks of a node with these labels."""
        rules = tuple(each.rule for each in self.groups if has_labels(labels, each.nodes))
        return NodeLayout(calendar, self.name, rules)


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether all wanted labels are there with their values."""
    return all(labels.get(key) == value for key, value in wanted.items())
