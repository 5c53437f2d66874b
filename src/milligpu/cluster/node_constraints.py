"""What a pod says about nodes beside its GPUs: selector, required affinity, tolerations.

kube-scheduler judges all of it and more; this is the cheap part, so that a nomination is rarely wrong and an
explanation counts a node that the pod excludes as what it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from milligpu.kube.objects import Taint

_BLOCKING = frozenset({"NoSchedule", "NoExecute"})
UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "NoSchedule")


class Expression(msgspec.Struct, frozen=True):
    """One condition on a label, or on the node's name."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class Term(msgspec.Struct, frozen=True):
    """Conditions that must hold together."""

    matchExpressions: tuple[Expression, ...] | None = None
    matchFields: tuple[Expression, ...] | None = None


class Terms(msgspec.Struct, frozen=True):
    """Terms of which one must hold."""

    nodeSelectorTerms: tuple[Term, ...] | None = None


class NodeAffinity(msgspec.Struct, frozen=True):
    """Only the required kind."""

    requiredDuringSchedulingIgnoredDuringExecution: Terms | None = None


class Affinity(msgspec.Struct, frozen=True):
    """Only the one to nodes."""

    nodeAffinity: NodeAffinity | None = None


class Toleration(msgspec.Struct, frozen=True):
    """One of `spec.tolerations`."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether a pod with it may go where the taint is."""
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        return self.key == taint.key and (self.operator == "Exists" or self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Place:
    """What a node offers to such conditions."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class Constraints:
    """A pod's conditions; hashable, because most pods have the same."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def admit(self, place: Place) -> bool:
        """Whether the pod may go there, as far as this can tell."""
        labels = place.labels
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        if self.terms is not None and not any(_holds(term, place) for term in self.terms):
            return False
        return all(
            any(toleration.covers(taint) for toleration in self.tolerations)
            for taint in place.taints
            if taint.effect in _BLOCKING
        )


def _holds(term: Term, place: Place) -> bool:
    by_label, by_name = term.matchExpressions or (), term.matchFields or ()
    if not by_label and not by_name:
        return False  # Kubernetes: an empty term matches nothing
    return all(_matches(each, place.labels.get(each.key)) for each in by_label) and all(
        _matches(each, place.name if each.key == "metadata.name" else None) for each in by_name
    )


def _matches(wants: Expression, value: str | None) -> bool:
    values = wants.values or ()
    match wants.operator:
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
            return have > than if wants.operator == "Gt" else have < than
        case _:
            return False
