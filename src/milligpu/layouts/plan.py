"""Which steps lead from what the nodes have to what a layout asks, and whether they have arrived."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from milligpu.layouts.journal import StepKind, SwitchStep
from milligpu.layouts.layout import CardLayout, has_labels
from milligpu.layouts.spec import CalendarSpec
from milligpu.model.card_rules import limit_by, rule_of
from milligpu.model.errors import BadFormat
from milligpu.model.gpu import Gpu
from milligpu.wire.gpu_settings import GpuSettings
from milligpu.wire.node_layout import NO_LAYOUT, NodeLayout, decode_node_layout, encode_node_layout

# Nodes per write of the journal; more would make a step long, and the journal of many nodes no smaller.
BATCH = 50


@dataclass(frozen=True, slots=True)
class LayoutNode:
    """What matters of a node here."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    gpus: tuple[Gpu, ...] = ()
    """As the node's agent reports them."""
    text: str = ""
    """The annotation `milligpu.dev/layout`; empty if there is none."""
    settings: GpuSettings = field(default_factory=GpuSettings, hash=False)
    """An admin's settings of single GPUs, which go before any layout."""
    ready: bool = True
    """Whether its kubelet answers."""

    @property
    def layout(self) -> NodeLayout:
        """What the annotation says; one that cannot be read says nothing."""
        try:
            return decode_node_layout(self.text) if self.text else NO_LAYOUT
        except BadFormat:
            return NO_LAYOUT


def nodes_of(calendars: Sequence[CalendarSpec], nodes: Iterable[LayoutNode]) -> dict[str, list[LayoutNode]]:
    """Return the nodes of each calendar. A node that several select is the first one's, by name."""
    order = sorted(calendars, key=lambda each: each.name)
    found: dict[str, list[LayoutNode]] = {each.name: [] for each in order}
    for node in sorted(nodes, key=lambda each: each.name):
        owner = next((each.name for each in order if has_labels(node.labels, each.nodes)), None)
        if owner is not None and (node.gpus or node.text):
            found[owner].append(node)
    return found


def contested(calendars: Sequence[CalendarSpec], nodes: Iterable[LayoutNode]) -> dict[str, dict[str, str]]:
    """Return for each calendar the nodes that it selects and another calendar has, with that one's name."""
    order = sorted(calendars, key=lambda each: each.name)
    found: dict[str, dict[str, str]] = {}
    for node in nodes:
        first, *others = [each.name for each in order if has_labels(node.labels, each.nodes)] or [""]
        for other in others:
            found.setdefault(other, {})[node.name] = first
    return found


def plan_switch(layout: CardLayout, calendar: str, nodes: Iterable[LayoutNode]) -> tuple[SwitchStep, ...]:
    """Return the steps to this layout: write what differs, then see that it holds. No step if nothing differs."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        wanted = encode_node_layout(layout.on_node(calendar, node.labels))
        if node.text != wanted:
            groups.setdefault((node.text, wanted), []).append(node.name)
    apply = tuple(
        SwitchStep(StepKind.APPLY, tuple(names[start : start + BATCH]), before, after)
        for (before, after), names in sorted(groups.items())
        for start in range(0, len(names), BATCH)
    )
    return (*apply, *(SwitchStep(StepKind.VERIFY, step.targets, step.before, step.after) for step in apply))


def stale_nodes(calendars: Sequence[CalendarSpec], nodes: Iterable[LayoutNode]) -> tuple[str, ...]:
    """Return the nodes that follow a calendar which is gone, or no longer selects them."""
    selectors = {each.name: each.nodes for each in calendars}

    def stale(node: LayoutNode) -> bool:
        selector = selectors.get(node.layout.calendar)
        return bool(node.text) and (selector is None or not has_labels(node.labels, selector))

    return tuple(sorted(node.name for node in nodes if stale(node)))


def missing_settings(node: LayoutNode, wanted: NodeLayout) -> tuple[str, ...]:
    """Return what the node's agent does not report yet, as sentences.

    A reserved part is not among it: it grows when pods end, and shrinks when sessions end.
    """
    return tuple(_missing(node, wanted))


def _missing(node: LayoutNode, wanted: NodeLayout) -> Iterator[str]:
    for gpu in node.gpus:
        rule = rule_of(wanted.cards, node.name, gpu)
        if rule.policy not in {None, gpu.policy} and gpu.uuid not in node.settings.policies:
            yield f"{gpu.uuid} has policy {gpu.policy}, wanted {rule.policy}"
        if gpu.limit != limit_by(rule, gpu):
            yield f"{gpu.uuid} has limit {gpu.limit}, wanted {limit_by(rule, gpu)}"
