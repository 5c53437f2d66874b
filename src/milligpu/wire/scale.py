"""What a service reads of its target and pods: `/scale`, label selectors, autoscalers, and declared ports."""

import re

import msgspec

from milligpu.model.gpu_service import ScaleKind, ScaleTarget


class _Port(msgspec.Struct):
    containerPort: int = 0
    protocol: str = "TCP"


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _PodSpec(msgspec.Struct):
    containers: list[_Container]
    hostNetwork: bool = False


class _PodStatus(msgspec.Struct):
    podIP: str = ""


_pod_spec_decoder = msgspec.json.Decoder(_PodSpec)
_pod_status_decoder = msgspec.json.Decoder(_PodStatus)


def metrics_host(spec: bytes, status: bytes, port: int) -> str:
    """Return the pod's own address, if it declares the port; empty where nothing may be read.

    The address of a pod with `hostNetwork` is the node's, where other programs listen, too.
    """
    found = _pod_spec_decoder.decode(spec)
    ports = {each.containerPort for one in found.containers for each in one.ports or () if each.protocol == "TCP"}
    if found.hostNetwork or port not in ports:
        return ""
    return _pod_status_decoder.decode(status).podIP


# -- scale ---------------------------------------------------------------------------------------------------


class _ScaleSpec(msgspec.Struct):
    replicas: int = 0


class _ScaleStatus(msgspec.Struct):
    replicas: int = 0
    selector: str = ""


class Scale(msgspec.Struct):
    """`/scale` of a target."""

    spec: _ScaleSpec = msgspec.field(default_factory=_ScaleSpec)
    status: _ScaleStatus = msgspec.field(default_factory=_ScaleStatus)


class _HpaTarget(msgspec.Struct):
    kind: str = ""
    name: str = ""


class _HpaSpec(msgspec.Struct):
    scaleTargetRef: _HpaTarget


class _HpaMeta(msgspec.Struct):
    name: str
    namespace: str


class _Hpa(msgspec.Struct):
    metadata: _HpaMeta
    spec: _HpaSpec


class _Hpas(msgspec.Struct):
    items: list[_Hpa]


def decode_autoscalers(text: bytes) -> dict[tuple[str, ScaleTarget], str]:
    """Return the HorizontalPodAutoscalers by the namespace and the target that they scale."""
    found: dict[tuple[str, ScaleTarget], str] = {}
    for each in msgspec.json.decode(text, type=_Hpas).items:
        target = each.spec.scaleTargetRef
        if target.kind in list(ScaleKind):
            found[each.metadata.namespace, ScaleTarget(ScaleKind(target.kind), target.name)] = each.metadata.name
    return found


def parse_selector(text: str) -> "ScaleSelector":
    """Read a label selector as `/scale` has it, such as `app=chat,tier in (a,b),!old`."""
    return ScaleSelector(tuple(_requirement(part.strip()) for part in _PARTS.findall(text)))


_PARTS = re.compile(r"[^,(]+(?:\([^)]*\))?")
_SET = re.compile(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)")
_EQUAL = re.compile(r"([^!=\s]+)\s*(==|=|!=)\s*(\S*)")

_Requirement = tuple[str, str, frozenset[str]]


def _requirement(text: str) -> _Requirement:
    if match := _SET.fullmatch(text):
        return match[1], match[2], frozenset(each.strip() for each in match[3].split(","))
    if match := _EQUAL.fullmatch(text):
        return match[1], "notin" if match[2] == "!=" else "in", frozenset({match[3]})
    return (text[1:].strip(), "absent", frozenset()) if text.startswith("!") else (text, "exists", frozenset())


class ScaleSelector(msgspec.Struct, frozen=True):
    """Which pods a target has."""

    requirements: tuple[_Requirement, ...]

    def matches(self, labels: dict[str, str] | None) -> bool:
        """Whether the labels meet all requirements; a selector without any selects nothing."""
        return bool(self.requirements) and all(_meets(labels or {}, each) for each in self.requirements)


def _meets(labels: dict[str, str], requirement: _Requirement) -> bool:
    key, operator, values = requirement
    match operator:
        case "in":
            return labels.get(key) in values
        case "notin":
            return labels.get(key) not in values
        case "absent":
            return key not in labels
        case _:
            return key in labels
