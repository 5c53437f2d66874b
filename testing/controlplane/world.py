"""One simulated cluster: two instances of the service, kube-scheduler, nodes with GPUs, and the kubelets."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import cast

import msgspec

from milligpu.cluster.pod_entry import PodStage
from milligpu.dialects.normal import NormalForm
from milligpu.kube.api import ApiClient
from milligpu.kube.watch import SharedWatch, Watch
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.gpu_queue import GpuQueue, GpuQueues
from milligpu.model.units import Mib
from milligpu.scheduler.metrics import SchedulerMetrics
from milligpu.scheduler.service import SchedulerService
from milligpu.scheduler.settings import SchedulerSettings
from milligpu.scheduler.term import LeaderTerm
from milligpu.webhook.review import PodReviewer
from milligpu.wire.kubernetes import KubeGpuClass, KubeGpuQueue, KubeNode
from testing.controlplane.client import Network, SimulatedClient
from testing.controlplane.clock import ProcessLoop, VirtualClock
from testing.controlplane.kube_scheduler import CLAIM, ONLY, REFUSED, KubeSchedulerModel
from testing.controlplane.objects import Document, apply_json_patch
from testing.controlplane.server import Change, SimulatedNode, SimulatedServer

_MIB = Mib(16384)
# kube-scheduler's httpTimeout.
_ASK_S = 5.0
# A kubelet ends a pod that is deleted.
_GRACE_S = 0.5
_RESTART_S = 1.0
_TERM = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}
_PREFERS = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_TERM]}}}


QUEUE = "line"
_QUEUES = GpuQueues([GpuQueue(QUEUE)])


def _ordinary(pod: Document) -> bool:
    notes: dict[str, str] = pod["metadata"]["annotations"]
    return not notes.keys() & {CLAIM, ONLY, REFUSED}


class ServiceProcess:
    """One instance of the service; when it ends it is restarted, as by a Deployment."""

    def __init__(self, name: str, clock: VirtualClock, server: SimulatedServer, network: Network) -> None:
        self.name = name
        self._clock = clock
        self._server = server
        self._network = network
        self._lives = count(1)
        self.paused_until = 0.0
        self.errors: list[str] = []
        self._start()

    def _start(self) -> None:
        self.identity = f"{self.name}-{next(self._lives)}"
        self.loop = ProcessLoop(self._clock)
        self.loop.on_death = self.kill
        self.client = SimulatedClient(self._server, self._network, self.loop, self.identity)
        self.client.on_death = self.kill
        self._reviewer = PodReviewer(NormalForm, queues=lambda: _QUEUES)
        self.service = SchedulerService(SchedulerMetrics())
        self._main = self.loop.spawn(self._run())

    async def _run(self) -> None:
        api = cast(ApiClient, self.client)
        nodes = SharedWatch(Watch(api, "/api/v1/nodes", KubeNode))
        classes = SharedWatch(Watch(api, names.CLASSES_PATH, KubeGpuClass, retry_s=10.0, optional=True))
        queues = SharedWatch(Watch(api, names.QUEUES_PATH, KubeGpuQueue, retry_s=10.0, optional=True))
        settings = SchedulerSettings(self.identity)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(nodes.run())
                tasks.create_task(classes.run())
                tasks.create_task(queues.run())
                tasks.create_task(
                    self.service.lead(
                        api, settings, nodes, classes, queues, now=self.loop.time, clock=self.loop.time
                    )
                )
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.errors.append(f"{self.identity} died: {error!r} {getattr(error, 'exceptions', '')}")

    def admit(self, pod: Document) -> Document:
        """Answer the API server's admission review, and apply the patch."""
        body = msgspec.json.encode({"request": {"uid": "review", "kind": {"kind": "Pod"}, "object": pod}})
        response: Document = msgspec.json.decode(self._reviewer.review(body))["response"]
        assert response["allowed"], response
        return apply_json_patch(pod, msgspec.json.decode(base64.b64decode(response["patch"])))

    @property
    def term(self) -> LeaderTerm | None:
        term = self.service.term
        return term if term is not None and term.ready and term.valid() else None

    def kill(self) -> None:
        """SIGKILL; requests that were sent may still be carried out."""
        if not self.client.dead:
            self.client.dead = True
            self.errors += self.loop.errors
            self.loop.kill()
            self._clock.after(_RESTART_S, self._start)

    def stop(self) -> None:
        """Send SIGTERM; the service needs some time to end."""
        client, main = self.client, self._main
        if not client.dead:
            self.loop.call_soon(main.cancel)
            main.add_done_callback(lambda _: self._clock.after(0.0, self._stopped(client)))

    def _stopped(self, client: SimulatedClient) -> Callable[[], None]:
        def end() -> None:
            if self.client is client:
                self.kill()

        return end

    def pause(self, seconds: float) -> None:
        loop = self.loop
        loop.pause()
        self.paused_until = self._clock.now + seconds

        def resume() -> None:
            if self.loop is loop and not self.client.dead:
                loop.resume()

        self._clock.after(seconds, resume)

    def end(self) -> None:
        """Close the loop, when the simulation is over."""
        if not self.client.dead:
            self.client.dead = True
            self.errors += self.loop.errors
            self.loop.kill()


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

    def __init__(self, seed: str, *, nodes: int, gpus: int, hints: bool, clears: bool, queue: bool = False) -> None:
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
        self.server.listeners.append(self._kubelet)
        self._scheduler_loop = ProcessLoop(self.clock)
        self.scheduler = KubeSchedulerModel(
            self._scheduler_loop, self.server, self._ask, hints=hints, clears=clears
        )
        for change in tuple(self.server.history):
            self._scheduler_loop.call_soon(self.scheduler._on_change, change)  # pyright: ignore[reportPrivateUsage]
        self._scheduler_loop.spawn(self.scheduler.run())
        self.instances = [ServiceProcess(name, self.clock, self.server, self.network) for name in ("a", "b")]
        if queue:
            meta = {"name": QUEUE, "uid": "uid-queue", "resourceVersion": "1"}
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

    async def _ask(self, verb: str, body: bytes) -> bytes:
        leader = self.leader
        if leader is None:
            await asyncio.sleep(0.001)
            raise Unavailable("connection refused")
        answer: asyncio.Future[tuple[int, bytes]] = self._scheduler_loop.create_future()
        loop, service, client = leader.loop, leader.service, leader.client

        async def handle() -> None:
            response = await service.routes().answer(b"POST", f"/{verb}".encode(), body)
            self.clock.after(0.0005, lambda: arrive(response.status, response.body))

        def arrive(status: int, found: bytes) -> None:
            if not answer.done() and not client.dead:
                self._scheduler_loop.call_soon(lambda: answer.done() or answer.set_result((status, found)))

        def send() -> None:
            if not client.dead:
                loop.call_soon(lambda: loop.spawn(handle()))

        self.clock.after(0.0005, send)
        try:
            async with asyncio.timeout(_ASK_S):
                status, found = await answer
        except TimeoutError:
            raise Unavailable("timeout") from None
        if status == 500:
            leader.errors.append(f"{verb} failed: {found.decode()}")
        if status != 200:
            raise Unavailable(f"{status}")
        return found

    # -- pods ---

    def _kubelet(self, change: Change) -> None:
        """End pods that were deleted."""
        if change.kind == "pods" and change.type == "MODIFIED" and b'"deletionTimestamp"' in change.text:
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
            "metadata": {"name": name, "namespace": "default", "annotations": notes, "labels": {}},
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
        pod = serving[self.created % len(serving)].admit(pod)
        pod["metadata"]["uid"] = f"uid-{name}" if name not in self._names else f"uid-{name}.{self.created}"
        self._names.add(name)
        self.server.create_pod(pod)
        return name

    def _check_order(self, pod: Document) -> None:
        """An older pod that asks for the same must have its place already when a younger one is let go."""
        leader = self.leader
        if leader is None or leader.term is None:
            return
        for other in self.server.pods.values():
            if other["metadata"]["name"] == pod["metadata"]["name"]:
                return
            same = other["spec"]["containers"] == pod["spec"]["containers"] and _ordinary(other) and _ordinary(pod)
            entry = leader.term.state.entry(other["metadata"]["uid"])
            waits = other["spec"].get("schedulingGates") and "deletionTimestamp" not in other["metadata"]
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

    def set_gpu(self, node: SimulatedNode, at: int, state: GpuState) -> None:
        node.gpus[at] = replace(node.gpus[at], state=state)
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
        for node in self.nodes:
            if not (node.there and node.agent) or node.lost:
                node.there, node.agent, node.lost = True, True, 0
                self.server.put_node(node)

    def calm(self) -> bool:
        """Whether a leader follows pods and nodes, and no process is paused."""
        leader = self.leader
        if leader is None or any(each.paused_until > self.clock.now for each in self.instances):
            return False
        open_ = {each.kind for each in self.network.streams if each.owner == leader.identity and not each.half_open}
        return open_ - {"gpuqueues"} == {"pods", "nodes"}

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

    def close(self) -> list[str]:
        """End all processes; return the errors that they did not expect."""
        for each in self.instances:
            each.end()
        self._scheduler_loop.kill()
        errors = [error for each in self.instances for error in each.errors]
        return errors + [f"kube-scheduler: {error}" for error in self._scheduler_loop.errors]
