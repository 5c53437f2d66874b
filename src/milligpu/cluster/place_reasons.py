"""Why a bound pod is where it is: which of its preferences and requirements its node meets. For commands."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from milligpu.cluster.node_constraints import NodeFacts, NodeSelectorRequirement, NodeSelectorTerm
from milligpu.cluster.preferences import read_preferences
from milligpu.wire.kubernetes import KubeNode, KubePod

_HOSTNAME = "kubernetes.io/hostname"


class LabelSelector(msgspec.Struct, frozen=True):
    """A selector of pods by their labels."""

    matchLabels: dict[str, str] | None = None
    matchExpressions: tuple[NodeSelectorRequirement, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects an object with these labels; an empty selector selects all."""
        exact = (self.matchLabels or {}).items()
        by_expression = self.matchExpressions or ()
        return all(labels.get(key) == value for key, value in exact) and all(
            each.holds(labels.get(each.key)) for each in by_expression
        )


class _PodTerm(msgspec.Struct, frozen=True):
    topologyKey: str
    labelSelector: LabelSelector | None = None
    namespaces: tuple[str, ...] | None = None
    namespaceSelector: LabelSelector | None = None

    def selects(self, pod: KubePod, own_namespace: str) -> bool:
        """Whether the term is about a pod. Labels of namespaces are not read: only the empty selector is known."""
        meta = pod.metadata
        named = self.namespaces or (() if self.namespaceSelector is not None else (own_namespace,))
        here = meta.namespace in named or self.namespaceSelector == LabelSelector()
        return here and self.labelSelector is not None and self.labelSelector.matches(meta.labels or {})


class _WeightedPodTerm(msgspec.Struct, frozen=True):
    podAffinityTerm: _PodTerm


class _PodAffinity(msgspec.Struct, frozen=True):
    requiredDuringSchedulingIgnoredDuringExecution: tuple[_PodTerm, ...] | None = None
    preferredDuringSchedulingIgnoredDuringExecution: tuple[_WeightedPodTerm, ...] | None = None


class _WeightedNodeTerm(msgspec.Struct, frozen=True):
    preference: NodeSelectorTerm


class _NodeAffinity(msgspec.Struct, frozen=True):
    preferredDuringSchedulingIgnoredDuringExecution: tuple[_WeightedNodeTerm, ...] | None = None


class _Affinity(msgspec.Struct, frozen=True):
    nodeAffinity: _NodeAffinity | None = None
    podAffinity: _PodAffinity | None = None


class _Spec(msgspec.Struct):
    nodeName: str = ""
    affinity: _Affinity | None = None


_decoder = msgspec.json.Decoder(_Spec)


def depends_on_pods(pod: KubePod) -> bool:
    """Whether other pods have to be listed to explain the place of this one."""
    return bool(_pod_terms(_decoder.decode(pod.spec)))


def explain_place(pod: KubePod, nodes: Sequence[KubeNode], pods: Iterable[KubePod]) -> list[str]:
    """Say what the pod's node has that the pod asked for; empty if it asked for nothing, or got nothing of it."""
    spec = _decoder.decode(pod.spec)
    node = next((each for each in nodes if each.metadata.name == spec.nodeName), None)
    if node is None:
        return []
    return [
        *_by_pods(pod, spec, node, nodes, pods),
        *_by_labels(spec, node),
        *_by_images(pod, node),
    ]


def _pod_terms(spec: _Spec) -> list[_PodTerm]:
    affinity = None if spec.affinity is None else spec.affinity.podAffinity
    if affinity is None:
        return []
    preferred = affinity.preferredDuringSchedulingIgnoredDuringExecution or ()
    required = affinity.requiredDuringSchedulingIgnoredDuringExecution or ()
    return [*required, *(each.podAffinityTerm for each in preferred)]


def _by_pods(
    pod: KubePod, spec: _Spec, node: KubeNode, nodes: Sequence[KubeNode], pods: Iterable[KubePod]
) -> Iterator[str]:
    others = [each for each in pods if each.metadata.uid != pod.metadata.uid]
    at = {each.metadata.uid: _decoder.decode(each.spec).nodeName for each in others}
    for term in _pod_terms(spec):
        value = (node.metadata.labels or {}).get(term.topologyKey)
        domain = {
            each.metadata.name for each in nodes if (each.metadata.labels or {}).get(term.topologyKey) == value
        }
        near = [
            each
            for each in others
            if at[each.metadata.uid] in domain and term.selects(each, pod.metadata.namespace)
        ]
        if value is None or not near:
            continue
        first = min(near, key=lambda each: (at[each.metadata.uid] != node.metadata.name, each.metadata.name))
        where = "there" if at[first.metadata.uid] == node.metadata.name else f"in {term.topologyKey}={value}"
        more = f", and {len(near) - 1} more" if len(near) > 1 else ""
        yield f"its pod {first.metadata.name} is {where}{more}"


def _by_labels(spec: _Spec, node: KubeNode) -> Iterator[str]:
    affinity = None if spec.affinity is None else spec.affinity.nodeAffinity
    preferred = () if affinity is None else affinity.preferredDuringSchedulingIgnoredDuringExecution or ()
    facts = NodeFacts(node.metadata.name, node.metadata.labels or {})
    for each in preferred:
        if each.preference.holds(facts):
            yield f"it prefers {each.preference.words}"


def _by_images(pod: KubePod, node: KubeNode) -> Iterator[str]:
    there = {name for image in node.status.images or () for name in image.names or ()}
    for image in read_preferences(pod.spec).images:
        if image in there:
            yield f"its image {image} is there"
