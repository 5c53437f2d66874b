"""One simulated cluster: two instances of the service, kube-scheduler, nodes with GPUs, and the kubelets."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import msgspec

from milligpu.cluster.pod_entry import PodStage
from milligpu.dialects.normal import NormalForm
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.gpu_queue import GpuQueue, GpuQueues
from milligpu.model.request import PodRef
from milligpu.model.units import Mib
from milligpu.webhook.review import PodReviewer
from milligpu.wire.evictions import EvictionRequest
from testing.controlplane.client import Network
from testing.controlplane.clock import ProcessLoop, VirtualClock
from testing.controlplane.kube_scheduler import CLAIM, ONLY, REFUSED, KubeSchedulerModel
from testing.controlplane.objects import Document, apply_json_patch
from testing.controlplane.server import Change, SimulatedNode, SimulatedServer
from testing.controlplane.service_process import ServiceProcess

_MIB = Mib(16384)
# kube-scheduler's httpTimeout.
_ASK_S = 5.0
# A kubelet ends a pod that is deleted.
_GRACE_S = 0.5
_TERM = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}
_PREFERS = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_TERM]}}}


_OWNER = {"apiVersion": "v1", "kind": "ReplicationController", "name": "c", "uid": "c", "controller": True}
# From a question of kube-scheduler to its answer.
_ASKED_S = 0.002
# A GPU that was unhealthy for this long gets no share: reservations from before have ended.
_UNHEALTHY_S = 35.0
QUEUE = "line"
_QUEUES = GpuQueues([GpuQueue(QUEUE)])
_REVIEWER = PodReviewer(NormalForm, queues=lambda: _QUEUES)


def _ordinary(pod: Document) -> bool:
    notes: dict[str, str] = pod["metadata"]["annotations"]
    return not notes.keys() & {CLAIM, ONLY, REFUSED}


def _admit(pod: Document) -> Document:
    """Answer the API server's admission review, and apply the patch."""
    patch = _review(msgspec.json.encode({**pod, "metadata": {**pod["metadata"], "name": "any"}}))
    return apply_json_patch(pod, msgspec.json.decode(patch))


@cache
def _review(pod: bytes) -> bytes:
    """The patch of the webhook, which depends on nothing but the pod; many pods differ only in their names."""
    body = b'{"request":{"uid":"review","kind":{"kind":"Pod"},"object":' + pod + b"}}"
    response: Document = msgspec.json.decode(_REVIEWER.review(body))["response"]
    assert response["allowed"], response
    return base64.b64decode(response["patch"])


@dataclass(frozen=True, slots=True)
class PodAsk:
    """What a new pod asks for, and what keeps it from being placed."""

    milli: int
    priority: int = 0
    memory: bool = False
    """Whether it names its memory, and does not get the same part of it."""
    hami: bool = False
    """Whether it is written in HAMi's dialect."""
    claim: str = ""
    only: str = ""
    refused: bool = False
    choosy: bool = False
    """Whether it prefers some nodes, so that kube-scheduler compares them."""
    queued: bool = False
    """Whether it waits in the queue."""

    @property
    def limits(self) -> dict[str, str]:
        if self.hami:
            percent = str(self.milli // 10)
            return {"nvidia.com/gpu": "1", "nvidia.com/gpucores": percent, "nvidia.com/gpumem-percentage": percent}
        memory = {names.VGPU_MEMORY: f"{_MIB * self.milli // 1000}"} if self.memory else {}
        return {names.VGPU: str(self.milli), **memory}


class World:
    """The whole simulated cluster, with a method for each kind of step."""

    def __init__(
        self, seed: str, *, nodes: int, gpus: int, hints: bool, clears: bool, kinds: bool, queue: bool
    ) -> None:
        self.clock = VirtualClock()
        self.dice = Random(seed)
        self.server = SimulatedServer(lambda: self.clock.now)
        self.network = Network(self.clock, self.dice, list_s=self.dice.choice((0.0, 0.3, 1.0)))
        self.nodes = [
            SimulatedNode(f"n{at}", [Gpu(f"GPU-{at}-{gpu}", "T4", _MIB) for gpu in range(gpus)])
            for at in range(nodes)
        ]
        for node in self.nodes:
            self.server.put_node(node)
        self.server.listeners["pods"].append(self._kubelet)
        self.server.bound.append(self._check_health)
        self.on_unhealthy: list[str] = []
        """Shares of GPUs that were known to be unhealthy."""
        self._unhealthy_since: dict[str, float] = {}
        self.on_filter: Callable[[bytes], Callable[[bytes], None] | None] = lambda _: None
        """Called with each request to filter; what it returns, with the answer."""
        self.unasked: list[str] = []
        """Pods with preferences for which kube-scheduler was not asked to compare the nodes that fit."""
        self._scheduler_loop = ProcessLoop(self.clock)
        self.scheduler = KubeSchedulerModel(
            self._scheduler_loop, self.server, self._ask, hints=hints, clears=clears
        )
        for change in tuple(self.server.history):
            self._scheduler_loop.call_soon(self.scheduler._on_change, change)  # pyright: ignore[reportPrivateUsage]
        self._scheduler_loop.spawn(self.scheduler.run())
        self.instances = [ServiceProcess(name, self.clock, self.server, self.network) for name in ("a", "b")]
        self.server.has_kinds = kinds
        if queue:
            meta = {"name": QUEUE, "uid": "queue", "resourceVersion": "1"}
            self.server.queue = {"metadata": meta, "spec": {"order": "fifo"}}
            self.server.ungated.append(self._check_order)
        self.out_of_order: list[str] = []
        """Pods that were started before an older one that asks for the same."""
        self.created = 0
        self._names: set[str] = set()

    # -- who answers kube-scheduler ---

    @property
    def leader(self) -> ServiceProcess | None:
        return next((each for each in self.instances if not each.client.dead and each.term is not None), None)

    def leading(self) -> list[str]:
        """The instances that may write now by their own clocks, paused ones included."""
        living = [each for each in self.instances if not each.client.dead]
        terms = [(each.identity, each.service.term) for each in living]
        return [name for name, term in terms if term is not None and term.valid()]

    async def _ask(self, verb: str, body: bytes) -> bytes:
        leader = self.leader
        if leader is None:
            await asyncio.sleep(0.001)
            raise Unavailable("connection refused")
        answer: asyncio.Future[tuple[int, bytes]] = self._scheduler_loop.create_future()
        look = self.on_filter(body) if verb == "filter" else None
        loop, routes, client = leader.loop, leader.routes, leader.client

        async def handle() -> None:
            response = await routes.answer(b"POST", f"/{verb}".encode(), body)
            self.clock.after(0.0005, lambda: arrive(response.status, response.body))

        def arrive(status: int, found: bytes) -> None:
            if not answer.done() and not client.dead:
                answer.set_result((status, found))

        def send() -> None:
            if not client.dead:
                loop.spawn(handle())

        def give_up() -> None:
            if not answer.done():
                answer.set_exception(Unavailable("timeout"))

        self.clock.after(0.0005, send)
        timer = self._scheduler_loop.call_later(_ASK_S, give_up)
        try:
            status, found = await answer
        finally:
            timer.cancel()
        if status == 500:
            leader.errors.append(f"{verb} failed: {found.decode()}")
        if status != 200:
            raise Unavailable(f"{status}")
        if look is not None:
            look(found)
        return found

    # -- pods ---

    def _kubelet(self, change: Change) -> None:
        """End pods that were deleted."""
        if change.type == "MODIFIED" and b'"deletionTimestamp"' in change.text:
            name = msgspec.json.decode(change.text)["metadata"]["name"]
            self.clock.after(_GRACE_S, lambda: self.server.delete_pod(name, force=True))

    def create(self, ask: "PodAsk", name: str = "") -> str | None:
        """Create a pod, as the webhook of a running instance leaves it; return its name, or None if none runs."""
        self.created += 1
        name = name or f"p{self.created}"
        notes = {key: value for key, value in ((CLAIM, ask.claim), (ONLY, ask.only)) if value}
        if ask.refused:
            notes[REFUSED] = "yes"
        pod: Document = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "annotations": notes,
                "labels": {},
                "ownerReferences": [_OWNER],
            },
            "spec": {
                "priority": ask.priority,
                **(_PREFERS if ask.choosy else {}),
                "containers": [{"name": "main", "resources": {"limits": ask.limits}}],
            },
            "status": {"phase": "Pending"},
        }
        if ask.queued:
            pod["metadata"]["labels"][names.QUEUE] = QUEUE
        serving = [each for each in self.instances if not each.client.dead and each.paused_until <= self.clock.now]
        if not serving:
            return None
        pod = _admit(pod)
        pod["metadata"]["uid"] = f"uid-{name}" if name not in self._names else f"uid-{name}.{self.created}"
        self._names.add(name)
        self.server.create_pod(pod)
        return name

    def _check_health(self, pod: Document) -> None:
        """A leader that has seen for long that a GPU is unhealthy gives no share of it."""
        for uuid in self.server.demands(pod):
            since = self._unhealthy_since.get(uuid, self.clock.now)
            if self.clock.now - since > _UNHEALTHY_S and self._follows("nodes"):
                self.on_unhealthy.append(f"{pod['metadata']['name']} got a share of {uuid}")

    def _follows(self, kind: str) -> bool:
        """Whether the leader has seen every change of the pods or nodes."""
        leader = self.leader
        return leader is not None and any(
            each.kind == kind and each.owner == leader.identity and each.delivered for each in self.network.streams
        )

    def _check_order(self, pod: Document) -> None:
        """An older pod that asks for the same must have its place already when a younger one is let go.

        A request to remove the older one's gate may have failed for so long that it has lost its place again.
        """
        leader = self.leader
        if leader is None or leader.term is None:
            return
        for other in self.server.pods.values():
            if other["metadata"]["name"] == pod["metadata"]["name"]:
                return
            same = other["spec"]["containers"] == pod["spec"]["containers"] and _ordinary(other) and _ordinary(pod)
            entry = leader.term.state.entry(other["metadata"]["uid"])
            waits = other["spec"].get("schedulingGates") and "deletionTimestamp" not in other["metadata"]
            waits = waits and other["metadata"]["name"] not in self.server.turns
            if same and waits and entry is not None and entry.queued and entry.stage is PodStage.WAITING:
                self.out_of_order.append(f"{pod['metadata']['name']} started before {other['metadata']['name']}")

    def recreate(self, name: str) -> None:
        """Force-delete a pod and create another of its name, as a StatefulSet does."""
        milli = int(self.server.pods[name]["spec"]["containers"][0]["resources"]["limits"][names.VGPU])
        self.server.delete_pod(name, force=True)
        self.create(PodAsk(milli), name)

    def pod(self, number: int, *, running: bool) -> str | None:
        """The name of a pod that exists, by a number; the same number may be another pod later."""
        found = [
            name
            for name, pod in self.server.pods.items()
            if not self.server.ended(pod) and (not running or pod["spec"].get("nodeName"))
        ]
        return found[number % len(found)] if found else None

    def ask_to_evict(self, name: str) -> None:
        """Let the agent of a pod's node ask to evict it, next to those that it has asked for."""
        pod = self.server.pods[name]
        node = next(each for each in self.nodes if each.name == pod["spec"]["nodeName"])
        ref = PodRef("default", name, pod["metadata"]["uid"])
        node.evicts = [each for each in node.evicts if each.pod != ref] + [EvictionRequest(ref, "refused")]
        if node.there:
            self.server.put_node(node)

    def set_gpu(self, node: SimulatedNode, at: int, state: GpuState) -> None:
        node.gpus[at] = replace(node.gpus[at], state=state)
        if state is GpuState.OK:
            self._unhealthy_since.pop(node.gpus[at].uuid, None)
        else:
            self._unhealthy_since.setdefault(node.gpus[at].uuid, self.clock.now)
        self.server.put_node(node)

    def make_claim(self, name: str) -> None:
        self.server.claims.add(name)
        self._scheduler_loop.call_soon(self.scheduler.claim_made)

    # -- calm ---

    def heal(self) -> None:
        """End all faults: requests go through, agents and nodes are back."""
        self.network.heal()
        for each in self.instances:
            each.client.die_at, each.loop.die_in = None, 0
        self.scheduler.forgets_binds_until = self.scheduler.binds_late_until = 0.0
        self.server.budget_until = 0.0
        for node in self.nodes:
            if not (node.there and node.agent) or node.lost or node.evicts:
                node.there, node.agent, node.lost, node.evicts = True, True, 0, []
                self.server.put_node(node)

    def restore(self) -> None:
        """Make the cluster as it was at its start: no pods, and all GPUs healthy."""
        for name in tuple(self.server.pods):
            self.server.delete_pod(name, force=True)
        for node in self.nodes:
            for at in range(len(node.gpus)):
                self.set_gpu(node, at, GpuState.OK)

    def calm(self) -> bool:
        """Whether a leader follows pods and nodes, no process is paused, and no pod waits after an error."""
        leader = self.leader
        if leader is None or any(each.paused_until > self.clock.now for each in self.instances):
            return False
        if self.scheduler.backing_off([pod["metadata"]["uid"] for pod in self.waiting()]):
            return False
        open_ = {each.kind for each in self.network.streams if each.owner == leader.identity and not each.half_open}
        return open_ >= {"pods", "nodes"}

    def undisturbed(self) -> bool:
        """Whether the leader knew the cluster when it was asked: it is calm, and nothing has changed since."""
        known = self.clock.now - self.server.changed_at >= _ASKED_S
        return known and self.calm() and self._follows("pods") and self._follows("nodes")

    def waiting(self) -> list[Document]:
        """Waiting pods that nothing but GPUs keeps from being placed; of those in the queue only the first."""
        gated = (each for each in self.server.pods.values() if each["spec"].get("schedulingGates"))
        first = next(gated, None)
        return [
            pod
            for pod in self.server.pods.values()
            if not pod["spec"].get("nodeName")
            and "deletionTimestamp" not in pod["metadata"]
            and pod["metadata"]["annotations"].get(CLAIM, "") in {"", *self.server.claims}
            and REFUSED not in pod["metadata"]["annotations"]
            and (not pod["spec"].get("schedulingGates") or pod is first)
        ]

    def blocked(self) -> set[str]:
        """The uids of waiting pods that something other than GPUs keeps from being placed."""
        free = {pod["metadata"]["uid"] for pod in self.waiting()}
        return {
            pod["metadata"]["uid"]
            for pod in self.server.pods.values()
            if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")
        } - free

    def close(self) -> list[str]:
        """End all processes; return the errors that they did not expect."""
        for each in self.instances:
            each.end()
        self._scheduler_loop.kill()
        errors = [error for each in self.instances for error in each.errors]
        return errors + [f"kube-scheduler: {error}" for error in self._scheduler_loop.errors]
