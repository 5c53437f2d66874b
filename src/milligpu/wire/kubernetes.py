"""The few fields of Kubernetes' objects that are looked at; all others are skipped while decoding."""

from typing import Any, Generic, TypeVar

import msgspec

_SPEC_NONE = msgspec.Raw(b"{}")


class Owner(msgspec.Struct):
    """One of `metadata.ownerReferences`."""

    uid: str = ""
    controller: bool = False


class Meta(msgspec.Struct):
    """`metadata`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    deletionTimestamp: str | None = None
    ownerReferences: list[Owner] | None = None


class Condition(msgspec.Struct):
    """One entry of `status.conditions`."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct):
    """`status` of a pod."""

    phase: str = ""
    nominatedNodeName: str = ""
    conditions: list[Condition] | None = None


class Pod(msgspec.Struct):
    """A pod; its spec is left as it came, because most events do not change it."""

    metadata: Meta
    spec: msgspec.Raw = _SPEC_NONE
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    def as_dict(self) -> dict[str, Any]:
        """The pod as dialects read it: what its author wrote, without the status."""
        return {"metadata": msgspec.to_builtins(self.metadata), "spec": msgspec.json.decode(self.spec)}


class Taint(msgspec.Struct, frozen=True):
    """One of `spec.taints` of a node."""

    key: str
    effect: str = ""
    value: str = ""


class NodeSpec(msgspec.Struct):
    """`spec` of a node."""

    taints: list[Taint] | None = None
    unschedulable: bool = False


class Address(msgspec.Struct):
    """One of `status.addresses` of a node."""

    type: str
    address: str


class NodeStatus(msgspec.Struct):
    """`status` of a node."""

    allocatable: dict[str, str] | None = None
    addresses: list[Address] | None = None


class Node(msgspec.Struct):
    """A node."""

    metadata: Meta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class Plain(msgspec.Struct):
    """Any object whose parts are passed on as they came."""

    metadata: Meta
    spec: msgspec.Raw = _SPEC_NONE
    status: msgspec.Raw = _SPEC_NONE


Thing = TypeVar("Thing", Pod, Node, Plain)


class ListMeta(msgspec.Struct):
    """`metadata` of a list."""

    resourceVersion: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Listed(msgspec.Struct, Generic[Thing]):
    """A page of a list."""

    metadata: ListMeta
    items: list[Thing]


_pod_decoder = msgspec.json.Decoder(Pod)


def decode_pod(text: bytes) -> Pod:
    """Read one pod."""
    return _pod_decoder.decode(text)
