"""Inference services in the leader: reads the load each second, and resizes and scales by what is decided from it.

What holds is in the objects: shares in the pods' grants, with the service's name next to them, and the number of
pods in the target. A leader that dies at any point leaves both as they are, and the next one decides when its first
window is full. Without a service in the cluster nothing is read but one list.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import structlog

from milligpu.cluster.agent_address import agent_address
from milligpu.cluster.state import ClusterState
from milligpu.kube.api import ApiClient
from milligpu.kube.events import EventRecorder, ObjectEvent
from milligpu.kube.watch import Changed, Relisted, Watch, follow_all
from milligpu.model import names
from milligpu.model.errors import BadRequest, Unavailable
from milligpu.model.gpu_service import GpuService, ScaleTarget
from milligpu.model.reasons import EventReason, ServiceReason
from milligpu.scheduler.resizer import Resizer
from milligpu.scheduler.service_load import LoadReader
from milligpu.scheduler.service_pods import WatchedPod, watched_pod
from milligpu.scheduler.service_rule import ServiceRule, fewest
from milligpu.scheduler.service_scale import mark_first_to_go, read_autoscalers, read_scale, write_scale
from milligpu.scheduler.service_shares import ServiceShares
from milligpu.scheduler.service_status import (
    READY,
    SCALED,
    UPDATED,
    ServiceCondition,
    conditions_of,
    differs_in_words,
    with_decisions,
    write_status,
)
from milligpu.services.decide import ReplicaDecision
from milligpu.services.window import LoadWindow
from milligpu.wait import wait_for_event
from milligpu.wire.gpu_service import KIND, service_of_object, status_of_service
from milligpu.wire.kubernetes import KubeNode, KubePod, RawObject

TICK_S = 1.0
_IDLE_S = 30.0
_SCALE_S = 5.0
_ACCOUNTS_S = 5.0
_HPA_S = 10.0
# Numbers in the status change all the time; they are written this often at most.
_NUMBERS_S = 10.0
_BLOCKED = frozenset(
    {
        ServiceReason.NO_ROOM,
        ServiceReason.AT_MAXIMUM,
        ServiceReason.QUOTA_COUNTS_TEMPLATE,
        ServiceReason.OTHER_AUTOSCALER,
        ServiceReason.MEMORY_HOLDS_ONE,
        ServiceReason.START_FAILED,
    }
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Unusable:
    """A service that does not rule, and why."""

    object: RawObject
    condition: ServiceCondition


class ServiceController:
    """Follows services, reads their load, and carries out what is decided."""

    def __init__(
        self,
        api: ApiClient,
        state: ClusterState,
        resizer: Resizer,
        events: EventRecorder,
        valid: Callable[[], bool],
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
        on_freed: Callable[[], None],
    ) -> None:
        """`valid` says whether this instance still leads; `on_freed` is called when shares were given back."""
        self._api = api
        self._state = state
        self._events = events
        self._valid = valid
        self._now = now
        self._clock = clock
        self._loads = LoadReader()
        self._shares = ServiceShares(state, resizer, now, on_freed)
        self._objects: list[RawObject] | None = None
        self._rules: dict[str, ServiceRule] = {}
        self._pods: dict[str, WatchedPod] | None = None
        self._agents: dict[str, str] = {}
        self._hpas: Mapping[tuple[str, ScaleTarget], str] = {}
        self._hpas_at = self._accounts_at = -1e9
        self._wake = asyncio.Event()

    # -- what the cluster has ----------------------------------------------------------------------------------

    def put_node(self, node: KubeNode) -> None:
        """Note where a node's agent listens."""
        address = agent_address(node)
        if address is not None:
            self._agents[node.metadata.name] = address

    def drop_node(self, name: str) -> None:
        """Forget a node that is gone."""
        self._agents.pop(name, None)

    async def run(self) -> None:
        """Follow and decide, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_services())
            tasks.create_task(self._work())

    async def _follow_services(self) -> None:
        async for objects in follow_all(Watch(self._api, names.SERVICES_PATH, RawObject, optional=True)):
            self._objects = objects
            self._wake.set()

    async def _follow_pods(self) -> None:
        """Follow all pods, while there are services; of namespaces without one nothing is kept."""
        async for news in Watch(self._api, "/api/v1/pods", KubePod).follow():
            spaces = {each.metadata.namespace for each in self._objects or ()}
            known = {} if isinstance(news, Relisted) or self._pods is None else self._pods
            changes = news.items if isinstance(news, Changed) else [("ADDED", each) for each in news.items]
            for kind, pod in changes:
                if kind == "DELETED":
                    known.pop(pod.metadata.uid, None)
                elif pod.metadata.namespace in spaces:
                    known[pod.metadata.uid] = watched_pod(pod)
            self._pods = known

    # -- work --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        following: asyncio.Task[None] | None = None
        spaces = set[str]()
        try:
            while True:
                if not self._objects and not self._state.pods.in_services:
                    await wait_for_event(self._wake, _IDLE_S)
                self._wake.clear()
                wanted = {each.metadata.namespace for each in self._objects or ()}
                if following is not None and (not wanted or not wanted <= spaces or following.done()):
                    if following.done() and (error := following.exception()) is not None:
                        log.warning("Could not follow the pods of services", error=str(error))
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                    following, self._pods = None, None
                if wanted and following is None:
                    following, spaces = asyncio.create_task(self._follow_pods()), wanted
                began = self._now()
                try:
                    if self._valid() and self._objects is not None:
                        await self._tick()
                except Unavailable as error:
                    log.warning("Could not follow services", error=error.message)
                await asyncio.sleep(max(0.05, TICK_S - (self._now() - began)))
        finally:
            if following is not None:
                following.cancel()

    async def _tick(self) -> None:
        usable, unusable = await self._read_services()
        if usable and self._pods is None:
            return  # the pods are being listed
        now = self._now()
        await self._read_loads(usable, now)
        for rule in usable:
            rule.decide_share()
        owner = await self._shares.share_out(usable, self._clock())
        named = {(each.metadata.namespace, each.metadata.name) for each in self._objects or ()}
        await self._shares.release_strays(owner, named - {each.key for each in usable})
        await self._scale(usable, now)
        for each in unusable:
            await self._write_conditions(each.object, each.condition)

    async def _read_services(self) -> tuple[list[ServiceRule], list[_Unusable]]:
        """Return the services that rule, the oldest first, and the others with what is wrong."""
        usable, unusable = list[ServiceRule](), list[_Unusable]()
        owners: dict[tuple[str, ScaleTarget], str] = {}
        objects = sorted(self._objects or (), key=lambda e: (e.metadata.creationTimestamp, e.metadata.uid))
        self._rules = {each.metadata.uid: r for each in objects if (r := self._rules.get(each.metadata.uid))}
        for each in objects:
            try:
                spec = service_of_object(each)
            except BadRequest as error:
                unusable.append(_Unusable(each, ServiceCondition(READY, ServiceReason.INVALID, error.message)))
                continue
            owner = owners.setdefault((spec.namespace, spec.target), spec.name)
            if owner != spec.name:
                message = f"service {owner} has {spec.target}"
                unusable.append(_Unusable(each, ServiceCondition(READY, ServiceReason.CONFLICT, message)))
                continue
            rule = self._rule(each, spec)
            if self._now() - rule.scale_read_at >= _SCALE_S:
                rule.scale, rule.scale_read_at = await read_scale(self._api, spec), self._now()
            if rule.scale is None:
                message = f"{spec.target} does not exist"
                found = ServiceCondition(READY, ServiceReason.TARGET_NOT_FOUND, message)
                unusable.append(_Unusable(each, found))
                continue
            usable.append(rule)
        return usable, unusable

    def _rule(self, found: RawObject, spec: GpuService) -> ServiceRule:
        rule = self._rules.get(found.metadata.uid)
        if rule is None:
            status = status_of_service(found)
            window = LoadWindow(status.gpuSecondsPerRequest)
            rule = ServiceRule(found, spec, window, status.share, status.startSeconds, status.starts)
            self._rules[found.metadata.uid] = rule
        rule.object, rule.spec = found, spec
        return rule

    async def _read_loads(self, rules: list[ServiceRule], now: float) -> None:
        pods = list((self._pods or {}).values())
        for rule in rules:
            scale, space = rule.scale, rule.spec.namespace
            mine = [
                each
                for each in pods
                if each.object.metadata.namespace == space and scale and scale.selector.matches(each.labels)
            ]
            rule.see(self._state, mine)

        async def read(rule: ServiceRule) -> None:
            ready = [each for each in rule.watched if each.ready and not each.leaving]
            loads, problems = await self._loads.read(ready, rule.spec.source)
            rule.measure(now, loads, problems)

        await asyncio.gather(*map(read, rules))
        learning = [each for each in rules if each.spec.load.requests is None and each.spec.load.running is None]
        if learning and now - self._accounts_at >= _ACCOUNTS_S:
            self._accounts_at = now
            await self._learn(learning)

    async def _learn(self, rules: list[ServiceRule]) -> None:
        nodes = {gpu[0] for rule in rules for pod in rule.ready for gpu in pod.gpus}
        used = await self._loads.accounts({node: at for node in nodes if (at := self._agents.get(node))})
        for rule in rules:
            ready = {each.uid for each in rule.ready}
            metas = [each.object.metadata for each in rule.watched if each.uid in ready]
            keys = {meta.uid: (meta.namespace, meta.name) for meta in metas}
            if all(key in used for key in keys.values()):
                rule.window.learn({uid: used[key] for uid, key in keys.items()})

    # -- replicas and status -----------------------------------------------------------------------------------

    async def _scale(self, rules: list[ServiceRule], now: float) -> None:
        if now - self._hpas_at >= _HPA_S and any(each.spec.replicas for each in rules):
            self._hpas, self._hpas_at = await read_autoscalers(self._api), now
        calls = self._shares.calls
        lent = [uid for uid, call in calls.calls.items() if call.lends]
        for rule in rules:
            rule.see(self._state, rule.watched)  # with the shares as they are now
            free = self._shares.free(gpu for each in rule.ready for gpu in each.gpus)
            decision = rule.decide_replicas(free)
            scaled = rule.scaled(decision, now)
            hpa = self._hpas.get((rule.spec.namespace, rule.spec.target))
            if rule.spec.replicas is not None and hpa is not None:
                scaled = ServiceCondition(
                    SCALED, ServiceReason.OTHER_AUTOSCALER, f"HorizontalPodAutoscaler {hpa} owns the replicas"
                )
            elif decision is not None:
                await self._write_replicas(rule, decision, free)
            updated = rule.updated(lent, calls.problems, self._clock())
            await self._write_rule(rule, scaled, updated)

    async def _write_replicas(
        self, rule: ServiceRule, decision: ReplicaDecision, free: Mapping[tuple[str, str], int]
    ) -> None:
        scale = rule.scale
        if scale is None or rule.spec.replicas is None or not self._valid():
            return
        going = fewest(rule.ready, free, max(0, scale.replicas - decision.replicas))
        if not await mark_first_to_go(self._api, rule.watched, going) or decision.replicas == scale.replicas:
            return
        if self._valid() and await write_scale(self._api, rule.spec, scale.replicas, decision.replicas):
            message = f"{scale.replicas} to {decision.replicas} pods: {decision.message}"
            rule.said.append(message)
            self._event(rule, EventReason.SERVICE_SCALED, message, normal=True)
            log.info("Scaled service", service=str(rule.spec), message=message)
        rule.scale_read_at = -1e9

    def _event(self, rule: ServiceRule, reason: EventReason, message: str, *, normal: bool) -> None:
        meta = rule.object.metadata
        event = ObjectEvent(
            KIND, meta.name, meta.uid, reason, "Scale", message, normal=normal, inside=meta.namespace
        )
        self._events.record(event, topic=f"{reason}")

    async def _write_rule(self, rule: ServiceRule, scaled: ServiceCondition, updated: ServiceCondition) -> None:
        for each in (scaled, updated):
            if rule.reported.get(each.type) != each.reason:
                rule.reported[each.type] = each.reason
                if each.reason in _BLOCKED:
                    self._event(rule, EventReason.SERVICE_BLOCKED, f"{each.reason}: {each.message}", normal=False)
                if each.type == UPDATED and each.reason is not ServiceReason.UP_TO_DATE:
                    rule.said.append(f"update: {each.reason}: {each.message}".rstrip(": "))
        paused = rule.spec.paused
        ready = ServiceCondition(READY, ServiceReason.PAUSED if paused else ServiceReason.FOLLOWING)
        known = status_of_service(rule.object)
        granted = sum(each.present for each in rule.pods)
        wall = datetime.fromtimestamp(self._clock(), UTC)
        generation = rule.object.metadata.generation
        wanted = with_decisions(rule.status(granted, known), rule.said, wall)
        conditions = conditions_of(known.conditions, (ready, rule.fresh, scaled, updated), generation, wall)
        wanted = msgspec.structs.replace(wanted, conditions=conditions)
        due = self._now() - rule.status_written_at >= _NUMBERS_S and wanted != known
        if (due or differs_in_words(wanted, known)) and self._valid():
            written = await write_status(self._api, rule.object, wanted)
            if written is not None:
                rule.status_written_at = self._now()
                rule.said.clear()
                self._replace(written)

    async def _write_conditions(self, found: RawObject, condition: ServiceCondition) -> None:
        known = status_of_service(found)
        wall = datetime.fromtimestamp(self._clock(), UTC)
        conditions = conditions_of(known.conditions, (condition,), found.metadata.generation, wall)
        wanted = msgspec.structs.replace(known, conditions=conditions)
        if wanted != known and self._valid():
            written = await write_status(self._api, found, wanted)
            if written is not None:
                self._replace(written)

    def _replace(self, written: RawObject) -> None:
        """Keep what was written, so that the next decision does not wait for the watch."""
        uid = written.metadata.uid
        self._objects = [written if each.metadata.uid == uid else each for each in self._objects or ()]
