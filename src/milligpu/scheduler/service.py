"""The service: watches in, answers out. What a term of leadership knows is made anew for the next one."""

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy.ma  # noqa: F401  # pyright: ignore[reportUnusedImport] - numpy's own first use of it would keep a pod waiting for 0.2 s
import structlog
import uvloop

from milligpu import dialects
from milligpu.dialects import Settings as Dialects
from milligpu.kube import config, objects
from milligpu.kube.api import Api
from milligpu.kube.watch import All, Changes, Watch
from milligpu.model.errors import MilligpuError
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.scheduler.admission import Admission
from milligpu.scheduler.admission import Settings as AdmissionSettings
from milligpu.scheduler.binder import Binder
from milligpu.scheduler.books import Books, Stage
from milligpu.scheduler.cards import Cards
from milligpu.scheduler.extender import BODY_MAX, Extender, failure
from milligpu.scheduler.leader import Leader, Timing
from milligpu.scheduler.metrics import Metrics
from milligpu.scheduler.nominator import Nominator
from milligpu.scheduler.resizer import Resizer
from milligpu.scheduler.server import STANDBY, Routes, Tls, error_body, serving
from milligpu.scheduler.sharepods import SharePods
from milligpu.scheduler.sight import NodeReader, PodReader
from milligpu.scheduler.teller import Teller

_EXPIRE_EVERY_S = 1.0

log = structlog.get_logger()


class Term:
    """The books and all that reads and writes them, from the first list to the loss of leadership."""

    def __init__(self, api: Api, settings: "Settings", valid: Callable[[], bool], metrics: Metrics) -> None:
        """`valid` says whether the term still lasts."""
        now = time.monotonic
        self._api = api
        self._metrics = metrics
        self.valid = valid
        self._settings = settings
        self._pods = PodReader(partial(dialects.read, settings=settings.dialects))
        self._nodes = NodeReader()
        self.books = Books(Placer(Snapshot()), now)
        self.extender = Extender(self.books, self._pods)
        self.binder = Binder(api, self.books, self._pods, valid, now)
        self.nominator = Nominator(api, self.books, settings.schedulers, lambda: self.binder.busy, now)
        self._resizer = Resizer(api, self.books, settings.identity, valid, now)
        self._teller = Teller(api, self.books, self.nominator, settings.identity, now)
        self._to_see = {"pods", "nodes"}
        self._seen_all = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether the whole cluster has been seen once."""
        return self._seen_all.is_set()

    def _seen(self, kind: str) -> None:
        self._to_see.discard(kind)
        if not self._to_see:
            self._seen_all.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_nodes())
            tasks.create_task(self._follow_pods())
            tasks.create_task(self.binder.settle())
            tasks.create_task(self._expire())
            await self._seen_all.wait()
            tasks.create_task(self.nominator.run())
            tasks.create_task(self._teller.run())
            tasks.create_task(self._resizer.run())
            if self._settings.admission is not None:
                tasks.create_task(SharePods(self._api).run())

    async def filter(self, body: bytes) -> bytes:
        """Answer kube-scheduler once there is room for the bind that will follow."""
        if self.binder.full:
            start = time.monotonic()
            await self.binder.room()
            self._metrics.held_back.inc(time.monotonic() - start)
        with self._metrics.timed("filter"):
            return self.extender.filter(body)

    async def bind(self, body: bytes) -> bytes:
        """Bind, or tell kube-scheduler why not."""
        order = self.extender.bind_order(body)
        try:
            with self._metrics.timed("bind"):
                await self.binder.bind(order)
            self._metrics.binds.labels("bound").inc()
        except MilligpuError as error:
            self._metrics.binds.labels("failed").inc()
            log.warning("bind failed", pod=f"{order.namespace}/{order.name}", node=order.node, error=error.message)
            return failure(error.message)
        return b"{}"

    # -- watches -----------------------------------------------------------------------------------------------

    async def _follow_nodes(self) -> None:
        async for news in Watch(self._api, "/api/v1/nodes", objects.Node).follow():
            match news:
                case All(items):
                    for gone in self._nodes.known() - {node.metadata.name for node in items}:
                        self._drop_node(gone)
                    for node in items:
                        self._put_node(node)
                    self._seen("nodes")
                case Changes(items):
                    for kind, node in items:
                        self._drop_node(node.metadata.name) if kind == "DELETED" else self._put_node(node)
            self.nominator.notice()

    def _put_node(self, node: objects.Node) -> None:
        sight = self._nodes.sight(node)
        if sight is not None:
            if sight.problem:
                log.warning("an inventory does not read", node=node.metadata.name, problem=sight.problem)
            self.books.put_node(sight)

    def _drop_node(self, name: str) -> None:
        self._nodes.forget(name)
        self.books.drop_node(name)

    async def _follow_pods(self) -> None:
        async for news in Watch(self._api, "/api/v1/pods", objects.Pod).follow():
            match news:
                case All(items):
                    for gone in self.books.uids() - {pod.metadata.uid for pod in items}:
                        self._drop_pod(gone)
                    for pod in items:
                        self._put_pod(pod)
                    self._seen("pods")
                case Changes(items):
                    for kind, pod in items:
                        self._drop_pod(pod.metadata.uid) if kind == "DELETED" else self._put_pod(pod)
            self.nominator.notice()
            self._resizer.notice()

    def _put_pod(self, pod: objects.Pod) -> None:
        try:
            self.books.put_pod(self._pods.sight(pod))
        except msgspec.DecodeError as error:
            log.warning(
                "a pod does not read", pod=f"{pod.metadata.namespace}/{pod.metadata.name}", error=str(error)
            )

    def _drop_pod(self, uid: str) -> None:
        self._pods.forget(uid)
        self.books.drop_pod(uid)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_EVERY_S)
            self.books.expire()
            self.nominator.look_again()


@dataclass(frozen=True, slots=True)
class Settings:
    """What `milligpu scheduler serve` was told."""

    identity: str
    """Who this instance is among others, such as its pod's name."""
    kubeconfig: str | None = None
    host: str = "127.0.0.1"
    port: int = 8888
    schedulers: tuple[str, ...] = ("default-scheduler",)
    """The names that kube-scheduler goes by where it asks us."""
    namespace: str = "milligpu"
    lease: str = "milligpu-scheduler"
    timing: Timing = field(default_factory=Timing)
    tls: Tls | None = None
    dialects: Dialects = field(default_factory=Dialects)
    admission: AdmissionSettings | None = None
    """The webhook, and with it KubeShare's SharePods; None leaves both to somebody else."""


class Service:
    """Serves whatever term there is; without one it is a standby and says so."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.term: Term | None = None

    def routes(self) -> Routes:
        """All that is served to kube-scheduler and to probes."""
        return Routes(
            post={"/filter": self._filter, "/bind": self._bind},
            get={"/livez": lambda: (200, "ok\n"), "/readyz": self._readyz, "/metrics": self._text},
            body_max=BODY_MAX,
            overlapping=("/bind",),
        )

    def _ready_term(self) -> Term | None:
        return self.term if self.term is not None and self.term.ready and self.term.valid() else None

    async def _filter(self, body: bytes) -> tuple[int, bytes]:
        term = self._ready_term()
        return (200, await term.filter(body)) if term is not None else (STANDBY, error_body(_NOT_READY))

    async def _bind(self, body: bytes) -> tuple[int, bytes]:
        term = self._ready_term()
        return (200, await term.bind(body)) if term is not None else (STANDBY, error_body(_NOT_READY))

    def _readyz(self) -> tuple[int, str]:
        return (200, "ok\n") if self._ready_term() is not None else (STANDBY, f"{_NOT_READY}\n")

    def _text(self) -> tuple[int, str]:
        term = self.term
        stages = None if term is None else {stage.value: term.books.count(stage) for stage in Stage}
        return 200, self._metrics.text(stages)


_NOT_READY = "this instance is not the leader, or has not seen the whole cluster yet"


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics = Metrics()
    service = Service(metrics)
    tls = None if settings.tls is None else settings.tls.context()
    async with (
        Api(config.find(settings.kubeconfig)) as api,
        serving(service.routes(), settings.host, settings.port, tls),
    ):
        lease = (settings.namespace, settings.lease)
        leader = Leader(api, lease, settings.identity, time.monotonic, settings.timing)

        async def term() -> None:
            service.term = Term(api, settings, lambda: leader.valid, metrics)
            try:
                await service.term.run()
            finally:
                service.term = None

        log.info("serving", host=settings.host, port=settings.port, identity=settings.identity)
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(leader.lead(term)), asyncio.create_task(stop.wait())]
        if settings.admission is not None:
            cards = Cards(api)
            tasks.append(asyncio.create_task(cards.run()))
            tasks.append(asyncio.create_task(Admission(api, settings.admission, cards.largest).run()))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        service.term = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await leader.resign()
        for task in done:
            task.result()


def main(settings: Settings) -> None:
    """Run the service in a loop of its own."""
    uvloop.run(serve(settings))
