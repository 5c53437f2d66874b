"""What a `GpuLayout` says: the settings of cards, for nodes by their labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from milligpu.model.card_rules import CardRule
from milligpu.wire.node_layout import NodeLayout


@dataclass(frozen=True, slots=True)
class CardGroup:
    """Card rules for the nodes that have all these labels."""

    nodes: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    rule: CardRule = field(default_factory=CardRule)


@dataclass(frozen=True, slots=True)
class CardLayout:
    """A layout of cards."""

    name: str
    groups: tuple[CardGroup, ...] = ()

    def on_node(self, calendar: str, labels: Mapping[str, str]) -> NodeLayout:
        """Return what this layout asks of a node with these labels."""
        rules = tuple(each.rule for each in self.groups if has_labels(labels, each.nodes))
        return NodeLayout(calendar, self.name, rules)


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether all wanted labels are there with their values."""
    return all(labels.get(key) == value for key, value in wanted.items())
