"""The scheduler service: answers kube-scheduler while this instance leads, and 503 while it stands by."""

import time
from collections.abc import Callable

import numpy.ma  # noqa: F401  # pyright: ignore[reportUnusedImport] - numpy's own first use of it would delay a pod by 0.2 s
import structlog

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.http_server import STANDBY, HttpResponse, HttpRoutes, error_body, serving, text_response
from milligpu.kube.api import ApiClient
from milligpu.kube.watch import Followed
from milligpu.scheduler.extender import BODY_MAX
from milligpu.scheduler.leader import LeaderElection
from milligpu.scheduler.metrics import SchedulerMetrics
from milligpu.scheduler.settings import SchedulerSettings
from milligpu.scheduler.term import LeaderTerm
from milligpu.wire.kubernetes import KubeGpuClass, KubeGpuQueue, KubeNode

log = structlog.get_logger()


class SchedulerService:
    """Answers for the current term; without one it is a standby.

    A standby is Ready, so that a rolling update goes on while the old leader still leads; `/leading` tells them
    apart.
    """

    def __init__(self, metrics: SchedulerMetrics) -> None:
        self._metrics = metrics
        self.term: LeaderTerm | None = None
        self._last_term: LeaderTerm | None = None
        self._election: LeaderElection | None = None

    def routes(self) -> HttpRoutes:
        return HttpRoutes(
            post={
                "/filter": self._filter,
                "/simulate": self._simulate,
                "/prioritize": self._prioritize,
                "/preempt": self._preempt,
                "/bind": self._bind,
            },
            get={
                "/livez": self._livez,
                "/readyz": self._readyz,
                "/leading": self._leading,
                "/metrics": self._metrics_text,
            },
            body_max=BODY_MAX,
            overlapping=("/bind",),
        )

    def _ready_term(self) -> LeaderTerm | None:
        return self.term if self.term is not None and self.term.ready and self.term.valid() else None

    async def _filter(self, body: bytes) -> tuple[int, bytes]:
        term = self._ready_term()
        return (200, await term.filter(body)) if term is not None else (STANDBY, error_body(_NOT_READY))

    async def _simulate(self, body: bytes) -> tuple[int, bytes]:
        term = self._ready_term()
        return (200, term.simulate(body)) if term is not None else (STANDBY, error_body(_NOT_READY))

    async def _prioritize(self, body: bytes) -> tuple[int, bytes]:
        term = self._ready_term()
        return (200, term.prioritize(body)) if term is not None else (STANDBY, error_body(_NOT_READY))

    async def _preempt(self, body: bytes) -> tuple[int, bytes]:
        term = self._ready_term()
        return (200, term.preempt(body)) if term is not None else (STANDBY, error_body(_NOT_READY))

    async def _bind(self, body: bytes) -> tuple[int, bytes]:
        term = self._ready_term()
        return (200, await term.bind(body)) if term is not None else (STANDBY, error_body(_NOT_READY))

    async def _livez(self) -> HttpResponse:
        return text_response("ok\n")

    async def _readyz(self) -> HttpResponse:
        """A standby is ready while it takes part in the election; a leader, once it has listed the cluster."""
        standby = self.term is None and self._election is not None and self._election.in_touch
        return text_response("ok\n") if standby else await self._leading()

    async def _leading(self) -> HttpResponse:
        leads = self._ready_term() is not None
        return text_response("ok\n") if leads else text_response(f"{_NOT_READY}\n", STANDBY)

    async def _metrics_text(self) -> HttpResponse:
        term = self.term
        stages = None if term is None else {stage.value: len(term.state.pods.in_stage(stage)) for stage in PodStage}
        return text_response(self._metrics.text(stages))

    async def lead(
        self,
        api: ApiClient,
        settings: SchedulerSettings,
        nodes: Followed[KubeNode],
        classes: Followed[KubeGpuClass],
        queues: Followed[KubeGpuQueue],
        *,
        now: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take part in leader election until cancelled, then end binds and release the leader Lease."""
        lease = (settings.namespace, settings.lease)
        leader = LeaderElection(api, lease, settings.identity, now, settings.timing, follow=settings.follow)
        self._election = leader

        async def settled() -> bool:
            return not await self._end_binds()

        async def run_term() -> None:
            self.term = term = LeaderTerm(
                api,
                settings,
                nodes,
                classes,
                queues,
                valid=lambda: leader.valid,
                metrics=self._metrics,
                now=now,
                clock=clock,
            )
            term.state.binds.carry_over(await self._end_binds())
            self._last_term = term
            try:
                await term.run()
            finally:
                self.term = None

        try:
            await leader.lead(run_term, settled)
        finally:
            # The next leader lists the cluster at once, and would not know of a bind that is carried out later.
            if await settled():
                await leader.resign()

    async def _end_binds(self) -> list[PodEntry]:
        """Wait for the last term's binds; return those without an answer, which may still be carried out."""
        if self._last_term is None:
            return []
        await self._last_term.binder.idle()
        return self._last_term.state.binds.unknown()


_NOT_READY = "this instance is not the leader, or has not listed the whole cluster yet"


async def serve(
    api: ApiClient,
    settings: SchedulerSettings,
    nodes: Followed[KubeNode],
    classes: Followed[KubeGpuClass],
    queues: Followed[KubeGpuQueue],
) -> None:
    """Serve and take part in leader election until cancelled, then release the leader Lease."""
    service = SchedulerService(SchedulerMetrics())
    tls = None if settings.tls is None else settings.tls.context()
    async with serving(service.routes(), settings.host, settings.port, tls):
        log.info("Serving", host=settings.host, port=settings.port, identity=settings.identity)
        await service.lead(api, settings, nodes, classes, queues, now=time.monotonic)
