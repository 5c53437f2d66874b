"""What a switch would change, before it happens."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from milligpu.layouts.layout import CardLayout
from milligpu.layouts.plan import LayoutNode
from milligpu.model.card_rules import limit_by, reserved_by, rule_of
from milligpu.model.gpu import Gpu
from milligpu.wire.node_layout import NodeLayout


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """GPUs of one node that change alike."""

    node: str
    gpus: int
    changes: tuple[str, ...]
    """Such as `policy equal -> fixed`; empty if nothing changes."""
    pods: int
    """Pods that hold a share on the node: all of them go on running."""
    note: str = ""
    """What keeps the node from following at once."""


def preview_switch(
    layout: CardLayout, calendar: str, nodes: Iterable[LayoutNode], pods: Mapping[str, int]
) -> tuple[PreviewRow, ...]:
    """Return what a switch to this layout changes on each node; `pods` is the number of pods with a share there."""
    return tuple(
        PreviewRow(
            node.name, count, changes, pods.get(node.name, 0), "" if node.ready else "follows when it is ready"
        )
        for node in nodes
        for changes, count in Counter(
            tuple(_changes(gpu, layout.on_node(calendar, node.labels), node)) for gpu in node.gpus
        ).items()
    )


def _changes(gpu: Gpu, wanted: NodeLayout, node: LayoutNode) -> Iterator[str]:
    rule = rule_of(wanted.cards, node.name, gpu)
    if rule.policy not in {None, gpu.policy}:
        kept = gpu.uuid in node.settings.policies
        yield f"policy {gpu.policy} stays: an admin set it" if kept else f"policy {gpu.policy} -> {rule.policy}"
    if rule.reserved is not None and reserved_by(rule, gpu) != gpu.reserved:
        yield f"reserved {gpu.reserved} -> {reserved_by(rule, gpu)}"
    if limit_by(rule, gpu) != gpu.limit:
        yield f"limit {gpu.limit} -> {limit_by(rule, gpu)}"
