"""Two sides for the same short scripts: the model of kube-scheduler and the real one. An extender records calls.

A side has nodes with milli-GPUs and pods that ask for them. The extender answers as the script says, and binds.
"""

import json
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import msgspec
from lightkube.resources.core_v1 import Pod

from devcluster.api import list_in, send_json
from devcluster.cluster import Cluster
from devcluster.kwok import KwokNodes
from devcluster.pods import node_name
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.gpu import Gpu
from testing.controlplane.clock import ProcessLoop, VirtualClock
from testing.controlplane.kube_scheduler import CLAIM, KubeSchedulerModel
from testing.controlplane.server import Change, SimulatedNode, SimulatedServer
from tests.e2e.scheduling import CARD_MIB, share_pod

Call = tuple[str, str, tuple[str, ...]]
"""The verb, the pod's name, and the nodes that are offered, asked about or bound to."""
# Virtual seconds after which a model has done all that it does after an event.
_SETTLED_S = 3.0
_DEADLINE_S = 60.0
_GRACE_S = 0.05
_MERGE = "application/merge-patch+json"


class Binds(Protocol):
    """Binds a pod of the API server, simulated or real."""

    def __call__(self, name: str, uid: str, node: str) -> None: ...


@dataclass
class ScriptedExtender:
    """Answers filter by pod, and agrees with all evictions.

    `yes` is the first node that is offered, `no` none, `single` the node if only one is offered, `error` an error.
    """

    bind: Binds
    answers: dict[str, str] = field(default_factory=dict[str, str])
    calls: list[Call] = field(default_factory=list[Call])

    def answer(self, verb: str, body: bytes) -> bytes:
        asked = json.loads(body)
        name = asked.get("PodName") or asked["Pod"]["metadata"]["name"]
        offered = asked.get("NodeNames") or asked.get("NodeNameToMetaVictims") or [asked.get("Node")]
        self.calls.append((verb, name, tuple(sorted(offered))))
        if verb == "bind":
            self.bind(name, asked["PodUID"], asked["Node"])
            return b"{}"
        if verb == "preempt":
            return json.dumps({"NodeNameToMetaVictims": asked["NodeNameToMetaVictims"]}).encode()
        match self.answers.get(name, "yes"):
            case "single" if len(offered) == 1:
                return json.dumps({"NodeNames": offered}).encode()
            case "yes":
                return json.dumps({"NodeNames": sorted(offered)[:1]}).encode()
            case "no" | "single":
                refused = dict.fromkeys(offered, "no room")
                return json.dumps({"NodeNames": [], "FailedAndUnresolvableNodes": refused}).encode()
            case _:
                return json.dumps({"Error": "not now"}).encode()


def calls_by_pod(calls: Sequence[Call]) -> dict[str, list[Call]]:
    """The calls about each pod; the same call again at once is the same attempt, made more than once."""
    found: dict[str, list[Call]] = {}
    for call in calls:
        earlier = found.setdefault(call[1], [])
        if not earlier or earlier[-1] != call:
            earlier.append(call)
    return found


class ModelSide:
    """The model of kube-scheduler, in virtual time."""

    def __init__(self, nodes: Sequence[str], slots: int) -> None:
        self._clock = VirtualClock()
        self._server = SimulatedServer(lambda: self._clock.now)
        self.extender = ScriptedExtender(self._bind)
        self._loop = loop = ProcessLoop(self._clock)
        self._server.listeners["pods"].append(self._kubelet)

        async def ask(verb: str, body: bytes) -> bytes:
            return self.extender.answer(verb, body)

        self._scheduler = KubeSchedulerModel(loop, self._server, ask, hints=True, clears=True)
        loop.spawn(self._scheduler.run())
        for name in nodes:
            self.set_slots(name, slots)

    def _kubelet(self, change: Change) -> None:
        if b'"deletionTimestamp"' in change.text and change.type == "MODIFIED":
            name = msgspec.json.decode(change.text)["metadata"]["name"]
            self._clock.after(_GRACE_S, lambda: self._server.delete_pod(name, force=True))

    def _bind(self, name: str, uid: str, node: str) -> None:
        self._server.bind(name, {"metadata": {"uid": uid}, "target": {"name": node}}, forgiven=False)

    def set_slots(self, node: str, slots: int) -> None:
        gpu = Gpu(f"GPU-{node}-0", "T4", CARD_MIB)
        self._server.put_node(SimulatedNode(node, [gpu], agent=bool(slots)))

    def create(self, name: str, milli: int, *, priority: int = 0, mib: int = 0, claim: str = "") -> None:
        memory = {names.VGPU_MEMORY: str(mib)} if mib else {}
        limits = {names.VGPU: str(milli), **memory}
        notes = {CLAIM: claim} if claim else {}
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": notes, "labels": {}}
        containers = [{"name": "main", "resources": {"limits": limits}}]
        spec = {"priority": priority, "containers": containers}
        self._server.create_pod({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})

    def delete(self, name: str) -> None:
        self._server.delete_pod(name, force=False)

    def nominate(self, name: str, node: str) -> None:
        patch = {"metadata": {"uid": f"uid-{name}"}, "status": {"nominatedNodeName": node}}
        self._server.patch_status(name, patch, forgiven=False)

    def settle(self) -> dict[str, str]:
        """Let everything happen that follows; return where each pod is."""
        self._clock.run_until(self._clock.now + _SETTLED_S)
        return {name: pod["spec"].get("nodeName", "") for name, pod in self._server.pods.items()}

    def close(self) -> None:
        self._loop.kill()


class RealSide:
    """kube-scheduler itself, with nodes and pods of a real API server."""

    def __init__(self, cluster: Cluster, namespace: str, nodes: KwokNodes, scheduler: str, high: str) -> None:
        self._client = cluster.client
        self._namespace = namespace
        self._nodes = nodes
        self._scheduler = scheduler
        self._high = high
        self.extender = ScriptedExtender(self._bind)

    def _bind(self, name: str, uid: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "uid": uid}, "target": target}
        send_json(self._client, "POST", self._path(name, "/binding"), body)

    def _path(self, name: str, rest: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods/{name}{rest}"

    def set_slots(self, node: str, slots: int) -> None:
        amounts = {names.VGPU: str(slots)}
        patch = {"status": {"allocatable": amounts, "capacity": amounts}}
        send_json(self._client, "PATCH", f"/api/v1/nodes/{node}/status", patch, _MERGE)

    def create(self, name: str, milli: int, *, priority: int = 0, mib: int = 0, claim: str = "") -> None:
        spec: dict[str, Any] = {"schedulerName": self._scheduler}
        if priority:
            spec["priorityClassName"] = self._high
        if claim:
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        made = share_pod(name, milli, self._nodes, mib=mib or None, **spec)
        self._client.create(made, namespace=self._namespace)

    def delete(self, name: str) -> None:
        self._client.delete(Pod, name, namespace=self._namespace)

    def nominate(self, name: str, node: str) -> None:
        patch = {"status": {"nominatedNodeName": node}}
        send_json(self._client, "PATCH", self._path(name, "/status"), patch, _MERGE)

    def wait_for_nodes(self) -> None:
        """Wait until kube-scheduler offers all nodes, with a pod that is refused until then."""
        self.extender.answers["first"] = "no"
        self.create("first", 1)
        both = ("filter", "first", tuple(sorted(self._nodes.names)))
        until("all nodes in an offer", lambda: both in self.extender.calls, _DEADLINE_S)
        self.delete("first")
        until("no pod", lambda: not self.places(), _DEADLINE_S)
        self.extender.calls.clear()

    def settle(self, expected: Mapping[str, str], calls: Mapping[str, list[Call]]) -> None:
        """Wait until pods are where the model has them, after the same calls."""
        until(
            f"pods at {expected} after {calls}",
            lambda: self.places() == dict(expected) and calls_by_pod(self.extender.calls) == calls,
            _DEADLINE_S,
            last_state=lambda: f"{self.places()} after {calls_by_pod(self.extender.calls)}",
        )

    def places(self) -> dict[str, str]:
        found = list_in(self._client, Pod, self._namespace)
        return {(each.metadata and each.metadata.name) or "": node_name(each) for each in found}


@contextmanager
def serving(extender: ScriptedExtender, port: int) -> Generator[None]:
    """Serve the extender's protocol over HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = extender.answer(self.path.rpartition("/")[2], body)
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
