"""One term of leadership: the cluster state, the watches that fill it, and everything that reads and writes it.

Each term starts with an empty state and lists the cluster again, so nothing outlives the loss of leadership.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Set
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial

import msgspec
import structlog

from milligpu import dialects
from milligpu.cluster.plain_reader import PlainReader
from milligpu.cluster.pod_entry import PodStage
from milligpu.cluster.read import NodeReader, PodReader, describe_end
from milligpu.cluster.resize import describe_grant
from milligpu.cluster.state import ClusterState
from milligpu.hypervisors.connect import connect
from milligpu.kube.api import ApiClient
from milligpu.kube.events import EventRecorder
from milligpu.kube.watch import Changed, Followed, ListEnded, ListPage, Relisted, Watch
from milligpu.model import names
from milligpu.model.errors import MilligpuError
from milligpu.model.gpu_class import GpuClasses
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.scheduler.binder import Binder
from milligpu.scheduler.classes import ClassController
from milligpu.scheduler.declared_classes import DeclaredClasses
from milligpu.scheduler.evictions import Evictions
from milligpu.scheduler.extender import Extender, error_answer
from milligpu.scheduler.layouts import LayoutController
from milligpu.scheduler.metrics import SchedulerMetrics
from milligpu.scheduler.node_conditions import NodeConditions
from milligpu.scheduler.nominator import Nominator
from milligpu.scheduler.preemptor import Preemptor
from milligpu.scheduler.queue_controller import QueueController
from milligpu.scheduler.resizer import Resizer
from milligpu.scheduler.servers import ServerController
from milligpu.scheduler.services import ServiceController
from milligpu.scheduler.settings import SchedulerSettings
from milligpu.scheduler.sharepods import SharePodController
from milligpu.scheduler.startup_taints import StartupTaints
from milligpu.scheduler.waiting_events import WaitingEvents
from milligpu.wait import in_turns
from milligpu.wire.kubernetes import KubeGpuClass, KubeGpuQueue, KubeNode, KubePod

_EXPIRE_EVERY_S = 1.0
# A page of at least so many pods means a large cluster. What was made of it is left out of the search for garbage,
# which would stop the process for some 0.1 s again and again. None of it is in a cycle: it is freed all the same.
_LASTING = 100

log = structlog.get_logger()


class LeaderTerm:
    """The leader's work, from the first list of the cluster to the loss of leadership."""

    def __init__(
        self,
        api: ApiClient,
        settings: SchedulerSettings,
        nodes: Followed[KubeNode],
        classes: Followed[KubeGpuClass],
        queues: Followed[KubeGpuQueue],
        *,
        valid: Callable[[], bool],
        metrics: SchedulerMetrics,
        now: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`valid` says whether the term still lasts; `clock` is in seconds since 1970."""
        self._now = now
        self._api = api
        self._node_watch = nodes
        self._metrics = metrics
        self.valid = valid
        self._settings = settings
        self._pods = PodReader(partial(dialects.read_pod, settings=settings.dialects))
        self._plain = PlainReader()
        self._nodes = NodeReader()
        self.state = ClusterState(Placer(Snapshot()), now)
        self.extender = Extender(self.state, self._pods)
        self._servers = ServerController(api, self.state, self._on_change, now)
        self.binder = Binder(
            api, self.state, self._pods, valid, now, drop=self._drop_pod, server_text=self._servers.text
        )
        self.nominator = Nominator(api, self.state, settings.schedulers, lambda: self.binder.busy, now)
        self._events = EventRecorder(api, "milligpu.dev/scheduler", settings.identity, now)
        self._resizer = Resizer(api, self._events, self.state, valid, now, pods=self._pods)
        self._waiting_events = WaitingEvents(self._events, self.state, self.nominator, now)
        self._conditions = NodeConditions(api, self._events, valid, now, lambda: datetime.now(UTC))
        self._startup_taints = StartupTaints(api, valid)
        self._evictions = Evictions(api, valid, now)
        self._class_watch = classes
        self._classes = ClassController(api, classes, self._set_classes)
        self._queues = QueueController(
            api,
            queues,
            self.state,
            self._events,
            valid,
            now=now,
            clock=clock,
            on_listed=lambda: self._seen("queues"),
        )
        self._preemptor = Preemptor(
            api,
            self.state,
            self._events,
            lambda: [*self.nominator.unplaceable.values()],
            self._queues.reclaims,
            resizer=self._resizer,
            valid=valid,
            now=now,
        )
        self._hypervisor = connect(settings.vsphere)
        self._layouts = LayoutController(api, self._events, valid, hypervisor=self._hypervisor)
        self._services = ServiceController(
            api,
            self.state,
            self._resizer,
            self._events,
            valid,
            now=now,
            clock=clock,
            on_freed=self._on_change,
        )
        self._to_see = {"pods", "nodes", "classes", "queues"}
        self._seen_all = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether all nodes, pods, classes and queues have been listed once."""
        return self._seen_all.is_set()

    def _seen(self, kind: str) -> None:
        self._to_see.discard(kind)
        if not self._to_see:
            self._seen_all.set()

    async def run(self) -> None:
        """Run the leader's tasks (watches, binds, nominations, events, resizes) until cancelled."""
        try:
            await self._run()
        finally:
            if self._hypervisor is not None:
                await self._hypervisor.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_nodes())
            tasks.create_task(self._follow_pods())
            tasks.create_task(self._classes.run())
            tasks.create_task(self._queues.follow())
            tasks.create_task(self._servers.run())
            tasks.create_task(self.binder.settle())
            tasks.create_task(self._expire())
            await self._seen_all.wait()
            tasks.create_task(self.nominator.run())
            tasks.create_task(self._queues.run())
            tasks.create_task(self._preemptor.run())
            tasks.create_task(self._events.run())
            tasks.create_task(self._waiting_events.run())
            tasks.create_task(self._resizer.run())
            tasks.create_task(self._conditions.run())
            tasks.create_task(self._startup_taints.run())
            tasks.create_task(self._evictions.run())
            tasks.create_task(self._layouts.run())
            tasks.create_task(self._services.run())
            if self._settings.classes is not None:
                tasks.create_task(DeclaredClasses(self._api, self._class_watch, self._settings.classes).run())
            if self._settings.sharepods:
                tasks.create_task(SharePodController(self._api).run())

    async def filter(self, body: bytes) -> bytes:
        """Answer kube-scheduler, once fewer than `IN_FLIGHT` binds are running."""
        if self.binder.full:
            start = self._now()
            await self.binder.room()
            self._metrics.held_back.inc(self._now() - start)
        with self._metrics.timed("filter"):
            return self.extender.filter(body)

    def prioritize(self, body: bytes) -> bytes:
        """Answer with points for packing on nodes that filter answered with."""
        with self._metrics.timed("prioritize"):
            return self.extender.prioritize(body)

    async def bind(self, body: bytes) -> bytes:
        """Bind the pod; the answer has the error if that failed."""
        request = self.extender.bind_request(body)
        try:
            with self._metrics.timed("bind"):
                await self.binder.bind(request)
            self._metrics.binds.labels("bound").inc()
        except MilligpuError as error:
            self._metrics.binds.labels("failed").inc()
            log.warning("Bind failed", pod=str(request.pod), node=request.node, error=error.message)
            return error_answer(error.message)
        return b"{}"

    def simulate(self, body: bytes) -> bytes:
        """Answer an autoscaler, which asks about nodes that do not exist yet."""
        with self._metrics.timed("simulate"):
            return self.extender.simulate(body)

    def preempt(self, body: bytes) -> bytes:
        """Answer which pods kube-scheduler may evict."""
        with self._metrics.timed("preempt"):
            return self.extender.preempt(body)

    # -- watches -----------------------------------------------------------------------------------------------

    async def _follow_nodes(self) -> None:
        async for news in self._node_watch.follow():
            match news:
                case Relisted(items):
                    for gone in self._nodes.known() - {node.metadata.name for node in items}:
                        self._drop_node(gone)
                    await in_turns(items, self._put_node)
                    self._seen("nodes")
                case Changed(items):
                    for kind, node in items:
                        self._drop_node(node.metadata.name) if kind == "DELETED" else self._put_node(node)
            self._on_change()

    def _put_node(self, node: KubeNode) -> None:
        self._layouts.put_node(node)
        self._services.put_node(node)
        self._evictions.put(node.metadata.name, (node.metadata.annotations or {}).get(names.EVICT))
        observed = self._nodes.read(node)
        if observed is not None:
            if observed.problem:
                log.warning("Could not read inventory", node=node.metadata.name, error=observed.problem)
            self.state.put_node(observed)
            self._conditions.put(observed)
            self._startup_taints.put(observed)

    def _drop_node(self, name: str) -> None:
        self._nodes.forget(name)
        self.state.drop_node(name)
        self._conditions.drop(name)
        self._startup_taints.drop(name)
        self._evictions.drop(name)
        self._layouts.drop_node(name)
        self._services.drop_node(name)

    def _set_classes(self, classes: GpuClasses) -> None:
        if self.state.set_classes(classes):
            log.info("Classes changed", classes=list(classes.names))
            self._waiting_events.forget_classes()
        self._seen("classes")
        self._on_change()

    def _on_change(self) -> None:
        self.nominator.on_change()
        self._queues.on_change()

    async def _follow_pods(self) -> None:
        watch = Watch(self._api, "/api/v1/pods", KubePod, on_list=self.state.pods.begin_list)
        async with aclosing(watch.follow_pages()) as everything:
            async for news in everything:
                match news:
                    case ListPage(items):
                        await in_turns(items, self._put_pod)
                        if len(items) >= _LASTING:
                            gc.freeze()
                        continue
                    case ListEnded(uids):
                        self._drop_missing(uids)
                        self._seen("pods")
                    case Changed(items):
                        for kind, pod in items:
                            self._delete_pod(pod) if kind == "DELETED" else self._put_pod(pod)
                self._on_change()
                self._resizer.notice()

    def _put_pod(self, pod: KubePod) -> None:
        try:
            if self.state.entry(pod.metadata.uid) is None and (plain := self._plain.read(pod)) is not None:
                self.state.put_plain(plain)
                return
            observed = self._pods.read(pod)
            if observed.ended:
                self._delete_pod(pod)
            else:
                self.state.put_pod(observed)
        except msgspec.DecodeError as error:
            log.warning("Could not read pod", pod=f"{pod.metadata.namespace}/{pod.metadata.name}", error=str(error))

    def _delete_pod(self, pod: KubePod) -> None:
        self._log_release(pod.metadata.uid, pod)
        self._drop_pod(pod.metadata.uid)

    def _log_release(self, uid: str, pod: KubePod) -> None:
        """Log that a pod gives its share back, and why: it ended, was deleted, or was evicted."""
        entry = self.state.entry(uid)
        if entry is not None and entry.stage is PodStage.BOUND and entry.grant is not None:
            shares, why = describe_grant(entry.grant), describe_end(pod)
            log.info("Released share", pod=str(entry.spec.pod), node=entry.node, shares=shares, why=why, uid=uid)

    def _drop_missing(self, listed: Set[str]) -> None:
        """Forget pods that are gone; those that became known after the list began may be newer than it."""
        for gone in (*self.state.pods.missing_from(listed), *self.state.plain.missing_from(listed)):
            self._drop_pod(gone)
        self._pods.keep(listed, lambda uid: self.state.entry(uid) is not None)

    def _drop_pod(self, uid: str) -> None:
        self._pods.forget(uid)
        self._events.forget(uid)
        self.nominator.forget(uid)
        self._queues.forget(uid)
        self.state.drop_pod(uid)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_EVERY_S)
            for unknown in self.state.expire():
                self._drop_pod(unknown)
            self.state.reservations.retry_handed()
            self._queues.on_tick()
            self.nominator.on_tick()
