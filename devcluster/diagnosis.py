"""Describe the last state of a cluster as text, for the report of a failed test."""

from collections.abc import Iterable

import httpx2
from lightkube import ApiError, Client
from lightkube.models.core_v1 import ContainerState, ContainerStatus
from lightkube.resources.core_v1 import Event, Node, Pod

from devcluster.api import list_all, list_in
from devcluster.process import Process

EVENTS_MAX = 30
LOG_LINES = 8


def last_state(client: Client, components: Iterable[Process], namespace: str | None = None) -> str:
    """Describe nodes, pods and events (of one namespace, if given) and the end of every component's log."""
    parts: list[str] = []
    try:
        parts.append("nodes:\n" + "\n".join(_node(node) for node in list_all(client, Node)))
        parts.append("pods:\n" + "\n".join(_pod(pod) for pod in list_in(client, Pod, namespace)))
        events = sorted(list_in(client, Event, namespace), key=lambda event: str(event.lastTimestamp))
        parts.append("events:\n" + "\n".join(_event(event) for event in events[-EVENTS_MAX:]))
    except (ApiError, httpx2.HTTPError) as error:
        parts.append(f"the API server does not answer: {error}")
    for component in components:
        state = "running" if component.is_running else "NOT RUNNING"
        parts.append(f"{component.name} ({state}), {component.log}:\n{component.tail(LOG_LINES)}")
    return "\n\n".join(parts)


def _node(node: Node) -> str:
    conditions = (node.status.conditions if node.status else None) or []
    said = " ".join(f"{each.type}={each.status}" for each in conditions if each.type == "Ready")
    return f"  {node.metadata.name if node.metadata else ''} {said}"


def _pod(pod: Pod) -> str:
    metadata, status, spec = pod.metadata, pod.status, pod.spec
    if metadata is None or status is None or spec is None:
        return "  (no content)"
    lines = [f"  {metadata.namespace}/{metadata.name} {status.phase} on {spec.nodeName} {status.reason or ''}"]
    lines += [
        f"    {each.type}={each.status} {each.reason or ''} {each.message or ''}"
        for each in status.conditions or []
        if each.status != "True"
    ]
    lines += [f"    {_container(each)}" for each in status.containerStatuses or []]
    return "\n".join(lines)


def _container(status: ContainerStatus) -> str:
    return f"{status.name}: {_state(status.state)}, restarts {status.restartCount}"


def _state(state: ContainerState | None) -> str:
    if state and state.waiting:
        return f"waiting {state.waiting.reason} {state.waiting.message or ''}"
    if state and state.terminated:
        return f"ended {state.terminated.reason} (exit code {state.terminated.exitCode})"
    return "running" if state and state.running else "unknown"


def _event(event: Event) -> str:
    thing = event.involvedObject
    return f"  {event.type} {event.reason} {thing.kind}/{thing.name}: {event.message}"
