"""Events on pods and nodes, which people read with `kubectl describe` and `kubectl events`."""

import asyncio
from collections.abc import Callable, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count

import structlog

from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.model.errors import Unavailable
from milligpu.model.names import GROUP_VERSION
from milligpu.model.reasons import EventReason
from milligpu.model.request import PodRef

# Kubernetes' own limits.
_NOTE_MAX = 1024
_INSTANCE_MAX = 128
_NAME_MAX = 200
# A thousand events within a minute, at a rate that leaves the API server to the binds.
_EVERY_S = 0.05
# While the API server is away.
_RETRY_S = 2.0
_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500
# While the API server is away events pile up; more than this and the oldest are dropped.
QUEUE_MAX = 10_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PodEvent:
    """What happened to a pod."""

    pod: PodRef
    reason: EventReason
    action: str
    """What the program was doing, in Kubernetes' sense: `Scheduling`, `Attach`."""
    message: str
    normal: bool = False
    """Whether this is good news; everything else is a warning."""

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def namespace(self) -> str:
        return self.pod.namespace

    @property
    def regarding(self) -> dict[str, str]:
        return {"kind": "Pod", "namespace": self.pod.namespace, "name": self.pod.name, "uid": self.pod.uid}


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """What happened to a node."""

    node: str
    uid: str
    reason: EventReason
    action: str
    message: str
    normal: bool = False

    @property
    def namespace(self) -> str:
        """Where Kubernetes wants events of objects that have no namespace."""
        return "default"

    @property
    def regarding(self) -> dict[str, str]:
        return {"kind": "Node", "name": self.node, "uid": self.uid}


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """What happened to an object of milligpu's own, such as a GpuCalendar."""

    kind: str
    name: str
    uid: str
    reason: EventReason
    action: str
    message: str
    normal: bool = False
    inside: str = ""
    """The namespace of the object, if its kind has one."""

    @property
    def namespace(self) -> str:
        return self.inside or "default"

    @property
    def regarding(self) -> dict[str, str]:
        where = {"namespace": self.inside} if self.inside else {}
        return {"apiVersion": GROUP_VERSION, "kind": self.kind, "name": self.name, "uid": self.uid, **where}


AnyEvent = PodEvent | NodeEvent | ObjectEvent


class EventRecorder:
    """Posts all events of one program: one queue, one rate, and each event until the API server has answered."""

    def __init__(self, api: ApiClient, controller: str, instance: str, now: Callable[[], float]) -> None:
        """`controller` is the program's name, `instance` says which of its instances this is."""
        self._api = api
        self._reporter = controller, instance[:_INSTANCE_MAX]
        self._now = now
        self._queue: dict[tuple[str, str], AnyEvent] = {}
        self._numbers = count()
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._last: dict[str, dict[str, tuple[AnyEvent, float]]] = {}

    def is_due(self, uid: str, topic: str, again_s: float) -> bool:
        """Whether the last event of this topic about the pod is at least `again_s` old."""
        last = self._last.get(uid, {}).get(topic)
        return last is None or self._now() - last[1] >= again_s

    def record(self, event: AnyEvent, *, topic: str = "", again_s: float = 0.0) -> bool:
        """Post an event, unless it repeats the last one of its topic. Return whether it will be posted.

        Within `again_s` a topic's event with the same reason is a repetition whatever its message says. An event
        without a topic is always posted.
        """
        uid = event.uid
        if topic:
            if self._repeats(event, topic, again_s):
                return False
            self._last.setdefault(uid, {})[topic] = event, self._now()
        key = uid, topic or f"#{next(self._numbers)}"
        self._queue.pop(key, None)
        self._queue[key] = event
        if len(self._queue) > QUEUE_MAX:
            dropped = self._queue.pop(next(iter(self._queue)))
            log.warning("Dropped event", regarding=_name(dropped), reason=str(dropped.reason))
        self._drained.clear()
        self._wake.set()
        return True

    def _repeats(self, event: AnyEvent, topic: str, again_s: float) -> bool:
        last = self._last.get(event.uid, {}).get(topic)
        if last is None:
            return False
        due = self.is_due(event.uid, topic, again_s)
        if last[0] == event and due:
            self._last[event.uid][topic] = event, self._now()
        return last[0] == event or (last[0].reason is event.reason and not due)

    def forget(self, uid: str, topic: str | None = None) -> None:
        """Forget what was posted about a pod that is gone, or one topic of it, which may then be posted again."""
        if topic is None:
            self._last.pop(uid, None)
        else:
            self._last.get(uid, {}).pop(topic, None)

    def keep(self, uids: Set[str]) -> None:
        """Forget what was posted about all other pods."""
        for uid in self._last.keys() - uids:
            del self._last[uid]

    async def drained(self) -> None:
        """Wait until every event has been posted."""
        await self._drained.wait()

    async def run(self) -> None:
        """Post events, until cancelled."""
        while True:
            await self._wake.wait()
            while self._queue:
                key, event = next(iter(self._queue.items()))
                posted = await self._post(event)
                if posted and self._queue.get(key) is event:
                    del self._queue[key]
                await asyncio.sleep(_EVERY_S if posted else _RETRY_S)
            self._wake.clear()
            self._drained.set()

    async def _post(self, event: AnyEvent) -> bool:
        """Return whether the event is done with: posted, or refused for good."""
        path = f"/apis/events.k8s.io/v1/namespaces/{event.namespace}/events"
        try:
            await self._api.send("POST", path, event_body(event, *self._reporter))
        except Unavailable as error:
            log.info("Could not post event", regarding=_name(event), reason=str(event.reason), error=error.message)
            status = error.status if isinstance(error, ApiRefused) else _SERVER_ERROR
            return status < _SERVER_ERROR and status != _TOO_MANY_REQUESTS
        return True


def event_body(event: AnyEvent, controller: str, instance: str) -> dict[str, object]:
    message, regarding = event.message, event.regarding
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{regarding['name'][:_NAME_MAX]}-", "namespace": event.namespace},
        "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "type": "Normal" if event.normal else "Warning",
        "reason": event.reason,
        "action": event.action,
        "reportingController": controller,
        "reportingInstance": instance,
        "regarding": {"apiVersion": "v1", **regarding},
        "note": message if len(message) <= _NOTE_MAX else message[: _NOTE_MAX - 1] + "…",
    }


def _name(event: AnyEvent) -> str:
    """The event's object as a name for logs, such as `pod/default/train`."""
    found = event.regarding
    return "/".join(found[key] for key in ("kind", "namespace", "name") if key in found).lower()
