"""A model of kube-scheduler: its queue, its own filters by a node's totals, nominations, preemption, and binds.

It sees the cluster with a delay. It may wake a pod that it gave up on when another pod ends (`hints`), or only when
the pod itself changes; and it may clear a nomination that it cannot use (`clears`), or leave it. Versions of
kube-scheduler differ in both.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import msgspec

from milligpu.manifests.kube_scheduler import TlsClientFiles, extender_entry
from milligpu.model import names
from milligpu.model.errors import Unavailable
from testing.controlplane.clock import ProcessLoop
from testing.controlplane.objects import Document, Refusal
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

Ask = Callable[[str, bytes], Awaitable[bytes]]
"""Sends a request to the extender and returns the answer's body; raises `Unavailable`."""


@dataclass(slots=True)
class _Queued:
    uid: str
    ready_at: float
    """When the pod may be tried; infinite for one that was given up on."""
    given_up_at: float = 0.0
    attempts: int = 0
    by_extender: bool = False
    """Whether the extender refused some node when the pod was given up on."""
    by_totals: bool = False
    """Whether the totals of some node did not suffice then."""


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
        self._pods: dict[str, Document] = {}
        self._nodes: dict[str, Document] = {}
        self._queue: dict[str, _Queued] = {}
        self._assumed: dict[str, str] = {}
        self._nominated: dict[str, str] = {}
        """Nominations that it knows of before the API server shows them."""
        self._news = asyncio.Event()
        self._binds: set[asyncio.Task[None]] = set()
        self._evicted: dict[str, set[str]] = {}
        """The pods that were last evicted for a pod."""
        self.in_vain: list[str] = []
        """Evictions that cannot help."""
        server.listeners.append(lambda change: loop.call_later(_SEES_AFTER_S, self._on_change, change))

    # -- what it sees ---

    def _on_change(self, change: Change) -> None:
        thing: Document = msgspec.json.decode(change.text)
        (self._on_pod if change.kind == "pods" else self._on_node)(change.type, thing)
        self._news.set()

    def _on_node(self, type_: str, node: Document) -> None:
        name = node["metadata"]["name"]
        if type_ == "DELETED":
            self._nodes.pop(name, None)
            return
        old = self._nodes.get(name)
        self._nodes[name] = node
        if old is None:
            self._wake(lambda _: True)
        elif self._slots(node) > self._slots(old):
            # Its hint overlooks that some resources are ignored, and so skips pods that ask for GPU memory.
            self._wake(lambda pod: self._hints and names.VGPU_MEMORY not in _limits(pod))

    def _on_pod(self, type_: str, pod: Document) -> None:
        uid = pod["metadata"]["uid"]
        old = self._pods.get(uid)
        self._nominated.pop(uid, None)
        gone = type_ == "DELETED" or self._server.ended(pod)
        if gone:
            self._pods.pop(uid, None)
            self._queue.pop(uid, None)
            self._assumed.pop(uid, None)
            if old is not None and old["spec"].get("nodeName") and self._hints:
                self._wake(lambda _: True)
            return
        self._pods[uid] = pod
        if pod["spec"].get("nodeName"):
            self._assumed.pop(uid, None)
            self._queue.pop(uid, None)
        elif pod["spec"].get("schedulingGates"):
            self._queue.pop(uid, None)
        elif uid not in self._queue and uid not in self._assumed:
            self._queue[uid] = _Queued(uid, self._loop.time())
        elif old is not None and _nominated(old) != _nominated(pod):
            self._on_nomination(old, pod)

    def _on_nomination(self, old: Document, pod: Document) -> None:
        """Retry a pod that the extender refused, because it changed; others when a nomination was removed."""
        queued = self._queue.get(pod["metadata"]["uid"])
        if queued is not None and queued.by_extender:
            queued.ready_at = min(queued.ready_at, max(self._loop.time(), self._backoff_end(queued)))
        if _nominated(old):
            most = _priority(old)
            totals = {uid for uid, each in self._queue.items() if each.by_totals or each.by_extender}
            self._wake(lambda each: each["metadata"]["uid"] in totals and _priority(each) <= most)

    def claim_made(self) -> None:
        """A claim was created: the pods that wait for one are tried again."""
        self._wake(lambda pod: CLAIM in pod["metadata"]["annotations"])

    def _wake(self, which: Callable[[Document], bool]) -> None:
        for queued in self._queue.values():
            if queued.ready_at == float("inf") and which(self._pods[queued.uid]):
                queued.ready_at = max(self._loop.time(), self._backoff_end(queued))
        self._news.set()

    def _backoff_end(self, queued: _Queued) -> float:
        return queued.given_up_at + min(_BACKOFF_MAX_S, _BACKOFF_S * 2 ** max(0, queued.attempts - 1))

    def backing_off(self) -> bool:
        """Whether a pod will be tried after its backoff; what waits for a hint does not count."""
        return any(self._loop.time() < each.ready_at < float("inf") for each in self._queue.values())

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
        self._queue = {uid: _Queued(uid, now) for uid, pod in self._pods.items() if not pod["spec"].get("nodeName")}
        self._news.set()

    # -- scheduling ---

    async def run(self) -> None:
        while True:
            now = self._loop.time()
            for queued in self._queue.values():
                if queued.ready_at == float("inf") and now - queued.given_up_at >= _FLUSH_S:
                    queued.ready_at = now
            ready = [each for each in self._queue.values() if each.ready_at <= now]
            if ready:
                await self._schedule(min(ready, key=self._order))
                continue
            self._news.clear()
            due = min((each.ready_at for each in self._queue.values()), default=float("inf"))
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if due == float("inf") else due):
                    await self._news.wait()

    def _order(self, queued: _Queued) -> tuple[int, float]:
        return -self._pods[queued.uid]["spec"].get("priority", 0), queued.ready_at

    async def _schedule(self, queued: _Queued) -> None:
        pod = self._pods[queued.uid]
        queued.attempts += 1
        if "deletionTimestamp" in pod["metadata"] or pod["spec"].get("schedulingGates"):
            queued.ready_at, queued.given_up_at = float("inf"), self._loop.time()
            return
        claim = pod["metadata"]["annotations"].get(CLAIM)
        if claim is not None and claim not in self._server.claims:
            self._give_up(queued, f'persistentvolumeclaim "{claim}" not found')
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

    async def _place(self, queued: _Queued, pod: Document) -> str | None:
        feasible, short = self._own_filter(pod)
        nominated = self._nomination(pod)
        offers = [[nominated]] if nominated in feasible else []
        for offer in (*offers, feasible):
            if not offer:
                continue
            answer = await self._filter(pod, offer)
            if answer:
                return await self._best(pod, answer)
        reasons = [f"{len(short)} Insufficient {names.VGPU}"] if short else []
        reasons += [f"{len(feasible)} no GPU has enough free capacity"] if feasible else []
        if short and not self._pods.get(queued.uid, pod)["spec"].get("nodeName"):
            await self._preempt(pod, short)
        if queued.uid in self._queue:
            queued.by_extender, queued.by_totals = bool(feasible), bool(short)
            reasons = reasons or ["node(s) didn't match pod affinity rules"]
            self._give_up(queued, f"0/{len(self._nodes)} nodes are available: {', '.join(reasons)}.")
        return None

    async def _best(self, pod: Document, nodes: list[str]) -> str:
        """Choose by the pod's preferences, which differ by pod and node here, and by the extender's points then."""
        if len(nodes) == 1:
            return nodes[0]
        body = msgspec.json.encode({"Pod": pod, "NodeNames": nodes})
        points: dict[str, int] = {}
        with suppress(Unavailable):  # it goes on without an extender's points
            answer: list[dict[str, Any]] = msgspec.json.decode(await self._ask("prioritize", body))
            points = {each["Host"]: each["Score"] for each in answer}
        uid = pod["metadata"]["uid"]
        return max(nodes, key=lambda node: (crc32(f"{uid} {node}".encode()) % 2, points.get(node, 0), node))

    def _own_filter(self, pod: Document) -> tuple[list[str], list[str]]:
        """Return the nodes whose totals suffice, and those that are short of slots."""
        only = pod["metadata"]["annotations"].get(ONLY)
        names_ = [name for name in self._nodes if only is None or name == only]
        feasible = [name for name in names_ if self._free(name, pod) >= _milli(pod)]
        return feasible, [name for name in names_ if name not in feasible]

    def _free(self, node: str, pod: Document, without: frozenset[str] = frozenset()) -> int:
        """Slots left for a pod, next to pods that are there or are nominated with at least its priority."""
        free, uid = self._slots(self._nodes[node]), pod["metadata"]["uid"]
        for other in self._pods.values():
            theirs = other["metadata"]["uid"]
            if theirs == uid or theirs in without:
                continue
            there = other["spec"].get("nodeName") or self._assumed.get(theirs, "")
            waits = not there and self._nomination(other) == node
            if there == node or (waits and _priority(other) >= _priority(pod)):
                free -= _milli(other)
        return free

    def _nomination(self, pod: Document) -> str:
        return self._nominated.get(pod["metadata"]["uid"]) or _nominated(pod)

    @staticmethod
    def _slots(node: Document) -> int:
        return int(node["status"]["allocatable"].get(names.VGPU, "0"))

    async def _filter(self, pod: Document, offer: list[str]) -> list[str]:
        body = msgspec.json.encode({"Pod": pod, "NodeNames": offer})
        answer: dict[str, Any] = msgspec.json.decode(await self._ask("filter", body))
        if answer.get("Error"):
            raise Unavailable(answer["Error"])
        return answer.get("NodeNames") or []

    def _retry(self, queued: _Queued) -> None:
        queued.given_up_at = self._loop.time()
        queued.ready_at = self._backoff_end(queued)

    def _give_up(self, queued: _Queued, message: str) -> None:
        queued.ready_at, queued.given_up_at = float("inf"), self._loop.time()
        name, uid = self._pods[queued.uid]["metadata"]["name"], queued.uid
        self._server.set_unschedulable(name, uid, message, clear=self._clears)

    # -- binding ---

    async def _bind(self, queued: _Queued, pod: Document, node: str) -> None:
        if self._loop.time() < self.binds_late_until:
            self.late_until = self._loop.time() + _LATE_S
            await asyncio.sleep(_LATE_S)
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        try:
            await self._send_bind(msgspec.json.encode(body), refused=REFUSED in meta["annotations"])
        except Unavailable:
            if self._assumed.pop(queued.uid, None) is not None and queued.uid in self._pods:
                self._queue[queued.uid] = queued
                self._retry(queued)
                self._news.set()

    async def _send_bind(self, body: bytes, *, refused: bool) -> None:
        if refused or self._loop.time() < self.forgets_binds_until:
            raise Unavailable("a plugin refused the pod after filter")
        answer: dict[str, Any] = msgspec.json.decode(await self._ask("bind", body))
        if answer.get("Error"):
            raise Unavailable(answer["Error"])

    # -- preemption ---

    async def _preempt(self, pod: Document, short: list[str]) -> None:
        """Evict pods of lower priority by a node's totals, as far as the extender agrees."""
        victims = {node: found for node in short if (found := self._victims(pod, node))}
        if not victims or self._waits_for_victims(pod):
            return
        offer = {node: {"Pods": [{"UID": uid} for uid in found]} for node, found in victims.items()}
        agreed: dict[str, Any] = offer
        if "preemptVerb" in extender_entry("", TlsClientFiles()):
            body = msgspec.json.encode({"Pod": pod, "NodeNameToMetaVictims": offer})
            answer: dict[str, Any] = msgspec.json.decode(await self._ask("preempt", body))
            agreed = answer.get("NodeNameToMetaVictims") or {}
        if not agreed:
            return
        node, chosen = min(agreed.items(), key=lambda each: len(each[1]["Pods"]))
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        victims_ = {each["UID"] for each in chosen["Pods"]}
        self._check_eviction(pod, node, victims_)
        for each in victims_:
            victim = self._pods.get(each)
            if victim is not None:
                self._server.delete_pod(victim["metadata"]["name"], force=False)
        # Its own memory has the nomination at once.
        self._nominated[uid] = node
        with suppress(Refusal):  # the pod is gone
            self._server.set_nominated(name, uid, node)

    def _waits_for_victims(self, pod: Document) -> bool:
        """Whether pods of lower priority are ending on the node to which the pod is nominated."""
        return any(
            "deletionTimestamp" in each["metadata"] and _priority(each) < _priority(pod)
            for each in self._pods.values()
            if each["spec"].get("nodeName") == (self._nomination(pod) or None)
        )

    def _check_eviction(self, pod: Document, node: str, victims: set[str]) -> None:
        """Check on the server's objects that one GPU has room for the pod without the victims, and not before."""
        what = f"{sorted(victims)} on {node} are evicted for {pod['metadata']['name']} of {_milli(pod)}"
        free = self._free_of_gpus(node, victims)
        if max(free, default=0) < _milli(pod):
            self.in_vain.append(f"{what}: {free} free")
        ending = {uid for uid in self._evicted.get(pod["metadata"]["uid"], ()) if uid in self._pods}
        free = self._free_of_gpus(node, ending)
        if ending and victims - ending and max(free, default=0) >= _milli(pod):
            self.in_vain.append(f"{what}, where {free} is free once {sorted(ending)} have ended")
        self._evicted[pod["metadata"]["uid"]] = victims

    def _free_of_gpus(self, node: str, without: set[str]) -> list[int]:
        rest = self._server.used(node, frozenset(without))
        return [
            gpu.allocatable - rest.get(uuid, (0, 0))[0]
            for (where, uuid), gpu in self._server.gpus.items()
            if where == node
        ]

    def _victims(self, pod: Document, node: str) -> list[str]:
        lower = [
            each
            for each in self._pods.values()
            if each["spec"].get("nodeName") == node
            and _priority(each) < _priority(pod)
            and "deletionTimestamp" not in each["metadata"]
        ]
        out = {each["metadata"]["uid"] for each in lower}
        if self._free(node, pod, frozenset(out)) < _milli(pod):
            return []
        for each in sorted(lower, key=_priority, reverse=True):
            spared = out - {each["metadata"]["uid"]}
            if self._free(node, pod, frozenset(spared)) >= _milli(pod):
                out = spared
        return sorted(out)


def _limits(pod: Document) -> dict[str, str]:
    return pod["spec"]["containers"][0]["resources"]["limits"]


def _milli(pod: Document) -> int:
    return int(_limits(pod)[names.VGPU])


def _priority(pod: Document) -> int:
    return pod["spec"].get("priority", 0)


def _nominated(pod: Document) -> str:
    return pod["status"].get("nominatedNodeName", "")
