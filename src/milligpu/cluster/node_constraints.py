"""A pod's conditions on nodes: selector, required affinity, tolerations.

kube-scheduler checks these and more. They are checked here as well, so that a nomination is rarely wrong and an
explanation says which nodes the pod itself excludes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from milligpu.model import names
from milligpu.wire.kubernetes import Taint

_BLOCKING = frozenset({"NoSchedule", "NoExecute"})
UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "NoSchedule")

# What a suspended node has: milligpu's own taint, and Kubernetes' because its kubelet does not answer.
_SUSPENSION = frozenset({names.SUSPENDED, "node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})


def without_suspension(taints: tuple[Taint, ...]) -> tuple[Taint, ...]:
    """Return the other taints of a suspended node: that it is suspended is said of its GPUs."""
    return tuple(each for each in taints if each.key not in _SUSPENSION)


class NodeSelectorRequirement(msgspec.Struct, frozen=True):
    """One condition on a label, or on the node's name."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None

    def holds(self, value: str | None) -> bool:
        """Whether it holds for a label with this value, or for one that is missing."""
        values = self.values or ()
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                try:
                    have, than = int(value or ""), int("".join(values))
                except ValueError:
                    return False
                return have > than if self.operator == "Gt" else have < than
            case _:
                return False


class NodeSelectorTerm(msgspec.Struct, frozen=True):
    """Conditions that must hold together."""

    matchExpressions: tuple[NodeSelectorRequirement, ...] | None = None
    matchFields: tuple[NodeSelectorRequirement, ...] | None = None

    def holds(self, facts: "NodeFacts") -> bool:
        """Whether all conditions hold for a node."""
        by_label, by_name = self.matchExpressions or (), self.matchFields or ()
        if not by_label and not by_name:
            return False  # Kubernetes: an empty term matches nothing
        return all(each.holds(facts.labels.get(each.key)) for each in by_label) and all(
            each.holds(facts.name if each.key == "metadata.name" else None) for each in by_name
        )

    @property
    def words(self) -> str:
        """The conditions as a person would write them."""
        both = (*(self.matchExpressions or ()), *(self.matchFields or ()))
        return " and ".join(
            f"{each.key} {each.operator}" + (f" ({', '.join(each.values)})" if each.values else "") for each in both
        )


class NodeSelector(msgspec.Struct, frozen=True):
    """Terms of which one must hold."""

    nodeSelectorTerms: tuple[NodeSelectorTerm, ...] | None = None


class NodeAffinity(msgspec.Struct, frozen=True):
    """The node affinity of a pod; only the required terms are read."""

    requiredDuringSchedulingIgnoredDuringExecution: NodeSelector | None = None


class Affinity(msgspec.Struct, frozen=True):
    """`spec.affinity` of a pod; only the part about nodes is read."""

    nodeAffinity: NodeAffinity | None = None


class Toleration(msgspec.Struct, frozen=True):
    """One of `spec.tolerations`."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether a pod with this toleration may go to a node with this taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        return self.key == taint.key and (self.operator == "Exists" or self.value == taint.value)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the conditions of pods are about: a node's name, labels and taints."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[Taint, ...] = ()
    remote: bool = False
    """Whether it is a GPU server, which is a node only to placement."""


@dataclass(frozen=True, slots=True)
class NodeConstraints:
    """A pod's conditions; hashable, because most pods have the same ones."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    remote: bool = False
    """Whether the pod's GPUs are on a GPU server; kube-scheduler alone checks its other conditions then."""

    def admit(self, facts: NodeFacts) -> bool:
        """Whether the pod may go to this node, by these conditions."""
        return self.refuse(facts) is None

    def refuse(self, facts: NodeFacts) -> str | None:
        """The first condition that keeps the pod from this node, as a person wrote it; None if there is none."""
        if self.remote is not facts.remote:
            return f"{names.ATTACH}, because the node is no GPU server" if self.remote else "it is a GPU server"
        for key, value in self.selector:
            if facts.labels.get(key) != value:
                has = f"{key}={facts.labels[key]}" if key in facts.labels else "no such label"
                return f"nodeSelector {key}={value}, and the node has {has}"
        if self.terms is not None and not any(term.holds(facts) for term in self.terms):
            return f"required nodeAffinity: {' or '.join(term.words for term in self.terms) or 'no term'}"
        for taint in facts.taints:
            if taint.effect in _BLOCKING and not any(each.covers(taint) for each in self.tolerations):
                value = f"={taint.value}" if taint.value else ""
                return f"taint {taint.key}{value}:{taint.effect} is not tolerated"
        return None
