"""The simulated API server: objects, their versions, and the history from which watches are served."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from milligpu.model import names
from milligpu.model.footprint import grant_demands
from milligpu.model.gpu import Gpu
from milligpu.model.request import ContainerKind
from milligpu.wire.evictions import EvictionRequest, encode_evictions
from milligpu.wire.grant import decode_grant
from milligpu.wire.inventory import encode_inventory
from testing.controlplane.objects import CONFLICT, NOT_FOUND, TOO_MANY, Document, Refusal, apply_json_patch

# After a disruption budget refused, evictions are tried again less and less often; a new leader starts over.
_REFUSALS_MAX, _REFUSALS_S = 12, 20.0


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the history."""

    version: int
    kind: str
    """`pods` or `nodes`."""
    type: str
    """ADDED, MODIFIED or DELETED."""
    text: bytes
    """The object."""


Listener = Callable[[Change], object]


@dataclass(slots=True)
class SimulatedNode:
    """A node: what its agent reports, and how many slots its kubelet counts."""

    name: str
    gpus: list[Gpu]
    agent: bool = True
    there: bool = True
    lost: int = 0
    """How many of its GPUs, the last ones, the agent does not find."""
    evicts: list[EvictionRequest] = field(default_factory=list[EvictionRequest])
    """The pods that its agent asks to evict."""

    @property
    def found(self) -> list[Gpu]:
        return self.gpus[: len(self.gpus) - self.lost]

    @property
    def offered(self) -> list[Gpu]:
        """What pods can get: nothing while the node or its agent is away."""
        return self.found if self.there and self.agent else []


@dataclass(slots=True)
class SimulatedServer:
    """All objects, and the violations that were found after writes."""

    now: Callable[[], float]
    version: int = 0
    changed_at: float = 0.0
    """When a pod or node was last written."""
    pods: dict[str, Document] = field(default_factory=dict[str, Document])
    nodes: dict[str, Document] = field(default_factory=dict[str, Document])
    gpus: dict[tuple[str, str], Gpu] = field(default_factory=dict[tuple[str, str], Gpu])
    has_kinds: bool = True
    """Whether it knows milligpu's own kinds, such as GpuQueue."""
    queue: Document | None = None
    """The one GpuQueue."""
    ungated: list[Callable[[Document], None]] = field(default_factory=list[Callable[[Document], None]])
    """Called with every pod whose gate was removed."""
    claims: set[str] = field(default_factory=set[str])
    lease: Document | None = None
    history: list[Change] = field(default_factory=list[Change])
    compacted: int = 0
    listeners: dict[str, list[Listener]] = field(default_factory=lambda: {"pods": [], "nodes": []})
    """Called with every change, by the kind of object."""
    violations: list[str] = field(default_factory=list[str])
    hasty: list[str] = field(default_factory=list[str])
    """Evictions that were tried again too often."""
    turns: set[str] = field(default_factory=set[str])
    """Names of pods whose turn has come, because some leader tried to remove their gate."""
    forgiven: set[str] = field(default_factory=set[str])
    """Pods whose grant was written by an instance that no longer led: the agent refuses what exceeds a GPU."""
    bound: list[Callable[[Document], None]] = field(default_factory=list[Callable[[Document], None]])
    """Called with every pod that was bound."""
    budget_until: float = 0.0
    """Until then a disruption budget refuses all evictions."""
    refused: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """When evictions of each pod were refused."""
    _demands: dict[tuple[str, str], dict[str, tuple[int, int]]] = field(
        default_factory=dict[tuple[str, str], dict[str, tuple[int, int]]]
    )
    """What grants come to, by node and text: they are added up after every write."""

    # -- writing ---

    def _record(self, kind: str, type_: str, thing: Document) -> None:
        self.version += 1
        self.changed_at = self.now()
        thing["metadata"]["resourceVersion"] = str(self.version)
        change = Change(self.version, kind, type_, msgspec.json.encode(thing))
        self.history.append(change)
        for listener in tuple(self.listeners[kind]):
            listener(change)

    def put_node(self, node: SimulatedNode) -> None:
        """Write the node as its agent and kubelet report it, or delete it."""
        old = self.nodes.get(node.name)
        self._demands.clear()
        for gpu in node.gpus:
            self.gpus[node.name, gpu.uuid] = gpu
        if not node.there:
            if old is not None:
                del self.nodes[node.name]
                self._record("nodes", "DELETED", old)
            return
        slots = sum(gpu.allocatable for gpu in node.found) if node.agent else 0
        allocatable = {"cpu": "64", "memory": "512Gi", names.VGPU: str(slots)}
        thing: Document = {
            "metadata": {
                "name": node.name,
                "uid": f"node-{node.name}",
                "annotations": {
                    names.INVENTORY: encode_inventory(node.found),
                    **({names.EVICT: encode_evictions(node.evicts)} if node.evicts else {}),
                },
                "labels": {"kubernetes.io/hostname": node.name},
            },
            "spec": {},
            "status": {"allocatable": allocatable},
        }
        self.nodes[node.name] = thing
        self._record("nodes", "ADDED" if old is None else "MODIFIED", thing)

    def create_pod(self, pod: Document) -> None:
        self.pods[pod["metadata"]["name"]] = pod
        self._record("pods", "ADDED", pod)

    def _modified(self, pod: Document) -> None:
        self._record("pods", "MODIFIED", pod)

    def delete_pod(self, name: str, *, force: bool) -> None:
        """Delete at once what is forced, has no node or has ended; else mark it, and its kubelet ends it."""
        pod = self.pods.get(name)
        if pod is None:
            return
        if force or not pod["spec"].get("nodeName") or self.ended(pod):
            del self.pods[name]
            self._record("pods", "DELETED", pod)
        elif "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
            self._modified(pod)

    def finish_pod(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and pod["spec"].get("nodeName") and not self.ended(pod):
            pod["status"]["phase"] = "Succeeded"
            self._modified(pod)

    def annotate_pod(self, name: str, key: str, value: str) -> None:
        pod = self.pods.get(name)
        if pod is not None:
            pod["metadata"]["annotations"][key] = value
            self._modified(pod)

    def set_unschedulable(self, name: str, uid: str, message: str, *, nominate: str | None) -> None:
        """Write the condition that kube-scheduler sets on a pod that it cannot place, and a nomination, if any."""
        pod = self.pods.get(name)
        if pod is None or pod["metadata"]["uid"] != uid or pod["spec"].get("nodeName"):
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        status = {**pod["status"], "conditions": [condition]}
        if nominate is not None:
            status["nominatedNodeName"] = nominate
        if status != pod["status"]:
            pod["status"] = status
            self._modified(pod)

    @staticmethod
    def ended(pod: Document) -> bool:
        return pod["status"].get("phase") in {"Succeeded", "Failed"}

    # -- requests of the service ---

    def _pod(self, name: str, uid: str | None = None) -> Document:
        pod = self.pods.get(name)
        if pod is None:
            raise Refusal(NOT_FOUND, f'pods "{name}" not found')
        if uid is not None and pod["metadata"]["uid"] != uid:
            raise Refusal(CONFLICT, "the UID in the precondition does not match")
        return pod

    def read_pod(self, name: str) -> bytes:
        return msgspec.json.encode(self._pod(name))

    def bind(self, name: str, binding: Document, *, forgiven: bool) -> None:
        """Set node and annotations in one write, or nothing."""
        pod = self._pod(name, binding["metadata"].get("uid"))
        if pod["spec"].get("nodeName"):
            raise Refusal(CONFLICT, f"pod {name} is already assigned to node {pod['spec']['nodeName']}")
        if "deletionTimestamp" in pod["metadata"]:
            raise Refusal(CONFLICT, f"pod {name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("schedulingGates"):
            raise Refusal(CONFLICT, f"pod {name} has non-empty .spec.schedulingGates")
        pod["spec"]["nodeName"] = binding["target"]["name"]
        pod["metadata"]["annotations"].update(binding["metadata"].get("annotations") or {})
        pod["status"]["conditions"] = []
        self._granted(pod, forgiven=forgiven)
        if not forgiven:
            for each in self.bound:
                each(pod)

    def evict(self, name: str, eviction: Document) -> None:
        """Delete a pod, unless it is only asked whether it may be, or a disruption budget refuses."""
        options: Document = eviction["deleteOptions"]
        uid = options["preconditions"]["uid"]
        self._pod(name, uid)
        if self.now() < self.budget_until:
            times = self.refused.setdefault(uid, [])
            times.append(self.now())
            if len(times) > _REFUSALS_MAX and times[-1] - times[-1 - _REFUSALS_MAX] < _REFUSALS_S:
                self.hasty.append(f"eviction of {name} was refused {_REFUSALS_MAX} times in {_REFUSALS_S:g} s")
            raise Refusal(TOO_MANY, "Cannot evict pod as it would violate the pod's disruption budget.")
        if "dryRun" not in options:
            self.delete_pod(name, force=False)

    def patch_pod(self, name: str, patch: Any) -> None:
        """Remove the gate of a queue."""
        changed = apply_json_patch(self._pod(name), patch)
        changed["spec"]["schedulingGates"] = []
        self.pods[name] = changed
        for each in self.ungated:
            each(changed)
        self._modified(changed)

    def patch_status(self, name: str, patch: Any, *, forgiven: bool) -> None:
        """Apply a merge patch of the status, or a JSON patch of annotations, as the service sends them."""
        if isinstance(patch, dict):
            document: Document = patch  # pyright: ignore[reportUnknownVariableType]
            pod = self._pod(name, document["metadata"]["uid"])
            status = {**pod["status"], **document["status"]}
            if pod["status"] != status:
                pod["status"] = status
                self._modified(pod)
            return
        pod = self._pod(name)
        changed = apply_json_patch(pod, patch)
        self.pods[name] = changed
        self._granted(changed, forgiven=forgiven)

    def read_lease(self) -> bytes:
        if self.lease is None:
            raise Refusal(NOT_FOUND, "leases not found")
        return msgspec.json.encode(self.lease)

    def write_lease(self, lease: Document, *, create: bool) -> None:
        """Create or replace the Lease; a replaced one must be the one that was read."""
        if create != (self.lease is None):
            raise Refusal(CONFLICT, "leases already exists" if create else "leases not found")
        if self.lease is not None:
            version = self.lease["metadata"]["resourceVersion"]
            if lease["metadata"].get("resourceVersion") != version:
                raise Refusal(CONFLICT, "the object has been modified")
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = lease

    @property
    def leader(self) -> str:
        return "" if self.lease is None else self.lease["spec"].get("holderIdentity") or ""

    # -- the truth ---

    def _granted(self, pod: Document, *, forgiven: bool) -> None:
        if forgiven:
            self.forgiven.add(pod["metadata"]["uid"])
        self._modified(pod)
        self._check_node(pod["spec"]["nodeName"])

    def demands(self, pod: Document) -> dict[str, tuple[int, int]]:
        """Milli and MiB that a pod holds of each GPU of its node."""
        text = pod["metadata"]["annotations"].get(names.GRANT)
        node = pod["spec"].get("nodeName")
        if text is None or not node or self.ended(pod):
            return {}
        known = self._demands.get((node, text))
        if known is None:
            kinds = {each["name"]: ContainerKind.MAIN for each in pod["spec"]["containers"]}
            gpus = {uuid: gpu for (where, uuid), gpu in self.gpus.items() if where == node}
            found = grant_demands(decode_grant(text).containers, kinds, gpus)
            known = {uuid: (int(demand.milli), int(demand.mib)) for uuid, demand in found.items()}
            self._demands[node, text] = known
        return known

    def used(self, node: str, without: frozenset[str] = frozenset()) -> dict[str, tuple[int, int]]:
        """Milli and MiB of each GPU of a node that pods hold."""
        sums: dict[str, tuple[int, int]] = {}
        for pod in self.pods.values():
            if pod["spec"].get("nodeName") == node and pod["metadata"]["uid"] not in without:
                for uuid, (milli, mib) in self.demands(pod).items():
                    have = sums.get(uuid, (0, 0))
                    sums[uuid] = have[0] + milli, have[1] + mib
        return sums

    def _check_node(self, node: str) -> None:
        for uuid, (milli, mib) in self.used(node, frozenset(self.forgiven)).items():
            gpu = self.gpus.get((node, uuid))
            if gpu is None:
                self.violations.append(f"{node}/{uuid} is granted and was never there")
            elif milli > gpu.allocatable or mib > gpu.allocatable_mib:
                self.violations.append(f"{node}/{uuid} is granted {milli} of {gpu.allocatable} milli")
