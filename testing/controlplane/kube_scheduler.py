"""A model of kube-scheduler: its queue, its own filters by a node's totals, nominations, preemption, and binds.

It sees the cluster with a delay. With `hints` it retries pods that it gave up on as kube-scheduler 1.37 does: one
that filter refused at any event, one that was refused by a node's totals when those may have grown. Without, it
retries them only for nominations and new nodes, so that nothing but the service wakes them. It may clear a
nomination that it cannot use (`clears`), or leave it; versions differ in that.

The queue is that of 1.33 and later. A pod that may be retried waits for its backoff only while others are ready
(SchedulerPopFromBackoffQ), unless its last attempt ended with an error. What happens during an attempt counts when
the attempt has failed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any
from zlib import crc32

import msgspec

from milligpu.manifests.kube_scheduler import TlsClientFiles, extender_entry
from milligpu.model import names
from milligpu.model.errors import Unavailable
from testing.controlplane.clock import ProcessLoop
from testing.controlplane.eviction_judge import EvictionJudge
from testing.controlplane.objects import Document
from testing.controlplane.queued_pod import Concerns, QueuedPod, SeenPod
from testing.controlplane.server import Change, SimulatedServer

CLAIM = "simulated/claim"
"""Annotation with the name of a claim that must exist before the pod can be placed."""
ONLY = "simulated/only"
"""Annotation with the node that the pod's affinity to other pods allows."""
REFUSED = "simulated/refused"
"""Annotation of a pod that another plugin refuses whenever filter has answered."""
_BACKOFF_S, _BACKOFF_MAX_S = 1.0, 10.0
_FLUSH_S = 300.0
_LATE_S = 12.0
_SEES_AFTER_S = 0.002
_NEVER = float("inf")

Ask = Callable[[str, bytes], Awaitable[bytes]]
"""Sends a request to the extender and returns the answer's body; raises `Unavailable`."""


class KubeSchedulerModel:
    """Schedules the pods of the simulated server by asking the extender."""

    def __init__(self, loop: ProcessLoop, server: SimulatedServer, ask: Ask, *, hints: bool, clears: bool) -> None:
        self._loop = loop
        self._server = server
        self._ask = ask
        self._hints = hints
        self._clears = clears
        self.forgets_binds_until = 0.0
        """Until then it filters and never binds."""
        self.binds_late_until = 0.0
        self.late_until = 0.0
        """When the last of the late binds is sent."""
        self._pods: dict[str, SeenPod] = {}
        self._nodes: dict[str, Document] = {}
        self._queue: dict[str, QueuedPod] = {}
        self._assumed: dict[str, str] = {}
        self._nominated: dict[str, str] = {}
        """Nominations that it knows of before the API server shows them."""
        self._news = asyncio.Event()
        self._trying = ""
        """The uid of the pod that is being tried."""
        self._meanwhile: list[Concerns] = []
        """What happened during this attempt."""
        self._binds: set[asyncio.Task[None]] = set()
        self.evictions = EvictionJudge(server)
        for listeners in server.listeners.values():
            listeners.append(lambda change: loop.call_later(_SEES_AFTER_S, self._on_change, change))

    # -- what it sees ---

    def _on_change(self, change: Change) -> None:
        thing: Document = msgspec.json.decode(change.text)
        if change.kind == "pods":
            self._on_pod(change.type, thing)
        else:
            self._on_node(change.type, thing)
        self._news.set()

    def _on_node(self, type_: str, node: Document) -> None:
        name = node["metadata"]["name"]
        if type_ == "DELETED":
            self._nodes.pop(name, None)
            return
        old = self._nodes.get(name)
        self._nodes[name] = node
        more = old is None or self._slots(node) > self._slots(old)

        def concerns(queued: QueuedPod, pod: SeenPod) -> bool:
            # Its hint overlooks that some resources are ignored, and so skips pods that ask for GPU memory.
            fits = more and self._slots(node) >= pod.milli and not pod.memory
            new = old is None and (queued.by_extender or pod.notes.get(ONLY) == name)
            grown = self._hints or old is None
            return new or (queued.by_totals and fits and grown) or (queued.by_extender and self._hints)

        self._wake(concerns)

    def _on_pod(self, type_: str, thing: Document) -> None:
        pod = SeenPod.read(thing)
        uid, old = pod.uid, self._pods.get(pod.uid)
        self._nominated.pop(uid, None)
        if type_ == "DELETED" or self._server.ended(thing):
            self._pods.pop(uid, None)
            self._queue.pop(uid, None)
            self._assumed.pop(uid, None)
            if old is not None and old.node:
                self._released()
            elif old is not None and old.nominated:
                self._nomination_removed(old)
            return
        self._pods[uid] = pod
        if pod.node:
            self._assumed.pop(uid, None)
            self._queue.pop(uid, None)
            self._wake(lambda queued, _: self._hints and queued.by_extender)
        elif pod.gated:
            self._queue.pop(uid, None)
        elif uid not in self._queue and uid not in self._assumed:
            self._queue[uid] = QueuedPod(uid, self._loop.time())
        elif old is not None:
            self._on_update(old, pod)

    def _on_update(self, old: SeenPod, pod: SeenPod) -> None:
        """Retry a pod that the extender refused, because it changed; others when a nomination was removed."""
        renominated = old.nominated != pod.nominated
        if renominated or self._hints:
            self._wake(lambda queued, _: queued.uid == pod.uid and queued.by_extender)
        if renominated and old.nominated:
            self._nomination_removed(old)

    def _nomination_removed(self, old: SeenPod) -> None:
        """Retry pods of at most its priority: a nominated pod counts in a node's totals."""
        self._wake(lambda queued, pod: (queued.by_totals or queued.by_extender) and pod.priority <= old.priority)

    def _released(self) -> None:
        """A pod left a node, or its bind failed."""
        self._wake(lambda queued, _: self._hints and (queued.by_totals or queued.by_extender))

    def claim_made(self) -> None:
        """A claim was created: the pods that wait for one are tried again."""
        self._wake(lambda _, pod: CLAIM in pod.notes)

    def _wake(self, concerns: Concerns) -> None:
        """Retry pods that were given up on; the one that is being tried, once its attempt has failed."""
        if self._trying:
            self._meanwhile.append(concerns)
        for queued in self._queue.values():
            if (
                queued.ready_at == _NEVER
                and queued.uid != self._trying
                and concerns(queued, self._pods[queued.uid])
            ):
                queued.ready_at = self._backoff_end(queued)
        self._news.set()

    @staticmethod
    def _backoff_end(queued: QueuedPod) -> float:
        count = queued.errors or queued.refusals
        return queued.given_up_at + (min(_BACKOFF_MAX_S, _BACKOFF_S * 2 ** (count - 1)) if count else 0.0)

    def backing_off(self, uids: Collection[str]) -> bool:
        """Whether one of these pods waits for its backoff after an error: nothing can shorten it."""
        now, found = self._loop.time(), (self._queue.get(uid) for uid in uids)
        return any(each is not None and each.errors and now < each.ready_at for each in found)

    def queued(self, uid: str) -> str:
        """Describe the pod's entry in the queue."""
        return str(self._queue.get(uid))

    def restart(self) -> None:
        """Lose everything that is not in the API server, as when the process restarts; binds under way are lost."""
        for task in self._binds:
            task.cancel()
        now = self._loop.time()
        self._assumed.clear()
        self._nominated.clear()
        self._trying = ""
        self._queue = {uid: QueuedPod(uid, now) for uid, pod in self._pods.items() if not pod.node}
        self._news.set()

    # -- scheduling ---

    async def run(self) -> None:
        while True:
            self._flush()
            queued = self._next()
            if queued is not None:
                await self._try(queued)
                continue
            self._news.clear()
            due = min((each.ready_at for each in self._queue.values()), default=_NEVER)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if due == _NEVER else due):
                    await self._news.wait()

    def _flush(self) -> None:
        """Retry pods that were given up on long ago."""
        now = self._loop.time()
        for queued in self._queue.values():
            if queued.ready_at == _NEVER and now - queued.given_up_at >= _FLUSH_S:
                queued.ready_at = now

    def _next(self) -> QueuedPod | None:
        """The pod to try: the most important that is ready, or else the one whose backoff ends first."""
        now = self._loop.time()
        ready = [each for each in self._queue.values() if each.ready_at <= now]
        if ready:
            return min(ready, key=self._order)
        backing_off = (each for each in self._queue.values() if each.ready_at < _NEVER and not each.errors)
        return min(backing_off, key=lambda each: each.ready_at, default=None)

    def _order(self, queued: QueuedPod) -> tuple[int, float]:
        return -self._pods[queued.uid].priority, queued.ready_at

    async def _try(self, queued: QueuedPod) -> None:
        self._trying = queued.uid
        self._meanwhile.clear()
        try:
            await self._schedule(queued)
        finally:
            self._trying = ""

    async def _schedule(self, queued: QueuedPod) -> None:
        pod = self._pods[queued.uid]
        if pod.leaving or pod.gated:
            queued.ready_at, queued.given_up_at = _NEVER, self._loop.time()
            return
        claim = pod.notes.get(CLAIM)
        if claim is not None and claim not in self._server.claims:
            queued.by_extender = queued.by_totals = False
            self._give_up(queued, f'persistentvolumeclaim "{claim}" not found')
            return
        if not self._nodes:
            self._retry(queued)  # no node at all is an error
            return
        try:
            node = await self._place(queued, pod)
        except Unavailable:
            self._retry(queued)
            return
        if node is None or queued.uid not in self._queue:
            return
        del self._queue[queued.uid]
        self._assumed[queued.uid] = node
        task = self._loop.create_task(self._bind(queued, pod, node))
        self._binds.add(task)
        task.add_done_callback(self._binds.discard)

    async def _place(self, queued: QueuedPod, pod: SeenPod) -> str | None:
        feasible, short = self._own_filter(pod)
        nominated = self._nomination(pod)
        if nominated in feasible:
            with suppress(Unavailable):  # it looks at the others then
                if await self._filter(pod, [nominated]):
                    return nominated
        answer = await self._filter(pod, feasible) if feasible else []
        if answer:
            return await self._best(pod, answer)
        reasons = [f"{len(short)} Insufficient {names.VGPU}"] if short else []
        reasons += [f"{len(feasible)} no GPU has enough free capacity"] if feasible else []
        nominate: str | None = ""
        if short and not self._pods.get(queued.uid, pod).node:
            with suppress(Unavailable):  # it preempts nobody then
                nominate = await self._preempt(pod, short)
        if queued.uid in self._queue:
            queued.by_extender, queued.by_totals = bool(feasible), bool(short)
            reasons = reasons or ["node(s) didn't match pod affinity rules"]
            self._give_up(queued, f"0/{len(self._nodes)} nodes are available: {', '.join(reasons)}.", nominate)
        return None

    async def _best(self, pod: SeenPod, nodes: list[str]) -> str:
        """Choose by the pod's preferences, which differ by pod and node here, and by the extender's points then."""
        if len(nodes) == 1:
            return nodes[0]
        body = msgspec.json.encode({"Pod": pod.document, "NodeNames": nodes})
        points: dict[str, int] = {}
        with suppress(Unavailable):  # it goes on without an extender's points
            answer: list[dict[str, Any]] = msgspec.json.decode(await self._ask("prioritize", body))
            points = {each["Host"]: each["Score"] for each in answer}
        return max(nodes, key=lambda node: (crc32(f"{pod.uid} {node}".encode()) % 2, points.get(node, 0), node))

    def _own_filter(self, pod: SeenPod) -> tuple[list[str], list[str]]:
        """Return the nodes whose totals suffice, and those that are short of slots."""
        only = pod.notes.get(ONLY)
        names_ = [name for name in self._nodes if only is None or name == only]
        feasible = [name for name in names_ if self._free(name, pod) >= pod.milli]
        return feasible, [name for name in names_ if name not in feasible]

    def _free(self, node: str, pod: SeenPod, without: frozenset[str] = frozenset()) -> int:
        """Slots left for a pod, next to pods that are there or are nominated with at least its priority."""
        free = self._slots(self._nodes[node])
        for other in self._pods.values():
            uid = other.uid
            there = other.node or self._assumed.get(uid, "")
            nominated = not there and other.priority >= pod.priority and self._nomination(other) == node
            if (there == node or nominated) and uid != pod.uid and uid not in without:
                free -= other.milli
        return free

    def _nomination(self, pod: SeenPod) -> str:
        return self._nominated.get(pod.uid) or pod.nominated

    @staticmethod
    def _slots(node: Document) -> int:
        return int(node["status"]["allocatable"].get(names.VGPU, "0"))

    async def _filter(self, pod: SeenPod, offer: list[str]) -> list[str]:
        body = msgspec.json.encode({"Pod": pod.document, "NodeNames": offer})
        answer: dict[str, Any] = msgspec.json.decode(await self._ask("filter", body))
        if answer.get("Error"):
            raise Unavailable(answer["Error"])
        return answer.get("NodeNames") or []

    def _retry(self, queued: QueuedPod) -> None:
        """An error: the pod is tried again after its backoff."""
        queued.errors += 1
        queued.given_up_at = self._loop.time()
        queued.ready_at = self._backoff_end(queued)

    def _give_up(self, queued: QueuedPod, message: str, nominate: str | None = "") -> None:
        """No node: the pod is tried again after an event that concerns it, such as one during this attempt.

        `nominate` is the node from which others were evicted for it; None while it waits until they have ended.
        """
        queued.errors, queued.refusals = 0, queued.refusals + 1
        queued.given_up_at, pod = self._loop.time(), self._pods[queued.uid]
        again = any(concerns(queued, pod) for concerns in self._meanwhile)
        queued.ready_at = self._backoff_end(queued) if again else _NEVER
        written = nominate or ("" if self._clears and nominate is not None else None)
        self._server.set_unschedulable(pod.name, queued.uid, message, nominate=written)

    # -- binding ---

    async def _bind(self, queued: QueuedPod, pod: SeenPod, node: str) -> None:
        if self._loop.time() < self.binds_late_until:
            self.late_until = self._loop.time() + _LATE_S
            await asyncio.sleep(_LATE_S)
        body = {"PodName": pod.name, "PodNamespace": "default", "PodUID": pod.uid, "Node": node}
        try:
            await self._send_bind(msgspec.json.encode(body), refused=REFUSED in pod.notes)
        except Unavailable:
            if self._assumed.pop(queued.uid, None) is not None and queued.uid in self._pods:
                self._queue[queued.uid] = queued
                self._retry(queued)
                self._released()

    async def _send_bind(self, body: bytes, *, refused: bool) -> None:
        if refused or self._loop.time() < self.forgets_binds_until:
            raise Unavailable("a plugin refused the pod after filter")
        answer: dict[str, Any] = msgspec.json.decode(await self._ask("bind", body))
        if answer.get("Error"):
            raise Unavailable(answer["Error"])

    # -- preemption ---

    async def _preempt(self, pod: SeenPod, short: list[str]) -> str | None:
        """Evict pods of lower priority by a node's totals, as far as the extender agrees; return the node.

        None if it has evicted some before, and they have not ended yet.
        """
        victims = {node: found for node in short if (found := self._victims(pod, node))}
        if self._waits_for_victims(pod):
            return None
        if not victims:
            return ""
        offer = {node: {"Pods": [{"UID": uid} for uid in found]} for node, found in victims.items()}
        agreed: dict[str, Any] = offer
        if "preemptVerb" in extender_entry("", TlsClientFiles()):
            body = msgspec.json.encode({"Pod": pod.document, "NodeNameToMetaVictims": offer})
            answer: dict[str, Any] = msgspec.json.decode(await self._ask("preempt", body))
            agreed = answer.get("NodeNameToMetaVictims") or {}
        if not agreed:
            return ""
        node, chosen = min(agreed.items(), key=lambda each: self._loss([pod["UID"] for pod in each[1]["Pods"]]))
        victims_ = {each["UID"] for each in chosen["Pods"]}
        self.evictions.judge(pod, node, victims_, self._pods.keys())
        for each in victims_:
            victim = self._pods.get(each)
            if victim is not None:
                self._server.delete_pod(victim.name, force=False)
        # Its own memory has the nomination at once.
        self._nominated[pod.uid] = node
        return node

    def _loss(self, victims: list[str]) -> tuple[int, int, int, int]:
        """What kube-scheduler compares nodes by: high priorities, many pods, and pods that have run for long."""
        order = {uid: number for number, uid in enumerate(self._pods)}
        priorities = [self._pods[uid].priority for uid in victims if uid in self._pods]
        latest = max((order[uid] for uid in victims if uid in order), default=0)
        return max(priorities, default=0), sum(priorities), len(victims), -latest

    def _waits_for_victims(self, pod: SeenPod) -> bool:
        """Whether pods of lower priority are ending on the node to which the pod is nominated."""
        nominated = self._nomination(pod) or None
        return any(
            each.leaving and each.priority < pod.priority and each.node == nominated for each in self._pods.values()
        )

    def _victims(self, pod: SeenPod, node: str) -> list[str]:
        lower = [
            each
            for each in self._pods.values()
            if each.node == node and each.priority < pod.priority and not each.leaving
        ]
        out = {each.uid for each in lower}
        if not out or self._free(node, pod, frozenset(out)) < pod.milli:
            return []
        for each in sorted(lower, key=lambda each: each.priority, reverse=True):
            spared = out - {each.uid}
            if self._free(node, pod, frozenset(spared)) >= pod.milli:
                out = spared
        return sorted(out)
