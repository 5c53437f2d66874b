"""Does what namespaces and queues ask for about idle pods: an event, and the smallest share if they ask for it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from milligpu.dialects.resize import ShareChange, format_resize, parse_resize
from milligpu.history.samples import HistorySource
from milligpu.kube import fetch
from milligpu.kube.api import ApiRefused
from milligpu.kube.config import BlockingClient
from milligpu.kube.events import PodEvent, event_body
from milligpu.model import names
from milligpu.model.errors import BadRequest, MilligpuError
from milligpu.model.reasons import EventReason
from milligpu.model.request import PodRef
from milligpu.model.units import WHOLE, Milli
from milligpu.status.advice import FLOOR_MILLI, IDLE_BELOW
from milligpu.status.idle_policy import IdleAction, IdlePolicy, is_idle_long_enough, read_idle_policy
from milligpu.status.picture import Picture, share_key
from milligpu.wire.kubernetes import KubePod
from milligpu.wire.status import ShareUsage

_log = logging.getLogger(__name__)

_CONTROLLER = names.PREFIX + "dashboard"
_CONFLICT, _NOT_FOUND = 409, 404


class IdleActions:
    """Looks at idle pods every now and then; remembers on which of them it acted."""

    def __init__(self, connect: Callable[[], BlockingClient], history: HistorySource) -> None:
        self._connect = connect
        self._history = history
        self._done: dict[str, int] = {}
        """The share of each pod's container on a GPU on which it acted, by key."""

    def act(self, picture: Picture) -> list[str]:
        """Act on what is idle for long enough; returns what people must mend, one sentence each."""
        self._forget(picture)
        with self._connect() as client:
            namespaces, problems = _policies(fetch.get_json(client, "/api/v1/namespaces")["items"], "namespace")
            queues, more = _policies(_queues(client), "queue")
            if not namespaces and not queues:
                return problems + more
            for use in picture.shares:
                policy = namespaces.get(use.namespace) or queues.get(picture.queue_and_user(use)[0])
                if use.pod and policy is not None and self._is_due(use, policy, picture.at):
                    try:
                        self._act(client, use, policy)
                    except MilligpuError as error:
                        _log.warning("Could not act on an idle pod: pod=%s error=%s", share_key(use), error.message)
            return problems + more

    def _forget(self, picture: Picture) -> None:
        """Forget pods that ended, and those that have another share now."""
        now = {share_key(use): use.milli for use in picture.shares}
        self._done = {key: milli for key, milli in self._done.items() if now.get(key) == milli}

    def _is_due(self, use: ShareUsage, policy: IdlePolicy, at: float) -> bool:
        key = share_key(use)
        # The quick question first: of thousands of pods, few do nothing now.
        if key in self._done or (use.utilization or 0.0) >= IDLE_BELOW:
            return False
        return is_idle_long_enough(self._history.line(policy.level, at - policy.after_s, key), policy)

    def _act(self, client: BlockingClient, use: ShareUsage, policy: IdlePolicy) -> None:
        pod = fetch.get_pod(client, use.namespace, use.pod)
        minutes = policy.after_s / 60
        text = f"container {use.container} holds {use.milli / WHOLE:g} GPU and did not use it for {minutes:g} min"
        if policy.action is IdleAction.SHRINK and not use.whole and use.milli > FLOOR_MILLI:
            _shrink(client, pod, use.container)
            again = f"kubectl milligpu resize pod/{use.pod} -n {use.namespace} -c {use.container}"
            text += (
                f"; its share is shrunk to {FLOOR_MILLI / WHOLE:g}; undo it with: {again} -p {use.milli / WHOLE:g}"
            )
            _post(client, pod, EventReason.IDLE_SHRUNK, text)
        else:
            _post(client, pod, EventReason.IDLE, text)
        _log.info("Acted on an idle pod: pod=%s action=%s", share_key(use), policy.action)
        self._done[share_key(use)] = use.milli


def _policies(found: Sequence[Mapping[str, Any]], kind: str) -> tuple[dict[str, IdlePolicy], list[str]]:
    """The policies by name, and what is wrong with others."""
    made, problems = dict[str, IdlePolicy](), list[str]()
    for each in found:
        name: str = each["metadata"]["name"]
        annotations: dict[str, str] = each["metadata"].get("annotations") or dict[str, str]()
        try:
            policy = read_idle_policy(annotations, f"{kind} {name}")
        except BadRequest as error:
            problems.append(error.message)
            continue
        if policy is not None:
            made[name] = policy
    return made, problems


def _queues(client: BlockingClient) -> Sequence[Mapping[str, Any]]:
    try:
        return fetch.get_json(client, names.QUEUES_PATH)["items"]
    except ApiRefused as error:
        if error.status != _NOT_FOUND:
            raise
        return []


def _shrink(client: BlockingClient, pod: KubePod, container: str) -> None:
    """Ask for the smallest share of one container, and leave what was asked for others as it is."""
    before = parse_resize((pod.metadata.annotations or {}).get(names.RESIZE, "{}"))
    change = ShareChange(milli=Milli(FLOOR_MILLI)).over(before.get(container, ShareChange()))
    text = format_resize({**before, container: change})
    fetch.annotate_pod(client, pod.metadata.namespace, pod.metadata.name, {names.RESIZE: text})


def _post(client: BlockingClient, pod: KubePod, reason: EventReason, text: str) -> None:
    """Post an event, once a day however often this process is restarted."""
    meta = pod.metadata
    event = PodEvent(PodRef(meta.namespace, meta.name, meta.uid), reason, "Idle", text)
    body = event_body(event, _CONTROLLER, _CONTROLLER)
    day = datetime.now(UTC).strftime("%Y%m%d")
    name = f"{meta.name[:200]}.{meta.uid[:8]}.{reason.lower()}.{day}"
    body["metadata"] = {"name": name, "namespace": meta.namespace}
    try:
        fetch.post_json(client, f"/apis/events.k8s.io/v1/namespaces/{quote(meta.namespace)}/events", body)
    except ApiRefused as error:
        if error.status != _CONFLICT:
            raise
