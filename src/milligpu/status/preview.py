"""Pods that do not exist yet: where they would stand, when they would start, and who would yield to them.

The API server is asked to create each pod without doing so, so all of admission decides about it: its queue, its
priority and quotas. Then it is added to the cluster as it is now.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from milligpu import dialects
from milligpu.cluster.explain import explain_waiting
from milligpu.cluster.explain_room import explain_room
from milligpu.cluster.observed import ObservedPod
from milligpu.cluster.pod_entry import PodEntry
from milligpu.cluster.preemption import lower_priority
from milligpu.cluster.read import PodReader
from milligpu.cluster.resize import describe_grant
from milligpu.cluster.state import ClusterState
from milligpu.dialects.pod import Json, section
from milligpu.dialects.templates import PATHS, pod_of_template
from milligpu.kube import fetch
from milligpu.model.errors import BadRequest
from milligpu.model.units import parse_whole
from milligpu.queues.cluster_lines import PodEnds, latest_start
from milligpu.queues.opening import find_opening
from milligpu.queues.standing import describe_latest_start
from milligpu.status.queues import QueueOverview, read_overview
from milligpu.status.state import read_state

# As many as a person reads.
COPIES_MAX = 64


@dataclass(frozen=True, slots=True)
class PodPreview:
    """What would become of a pod."""

    namespace: str
    pod: str
    text: str


def preview_pods(client: Any, manifests: Iterable[tuple[str, Json]], namespace: str) -> list[PodPreview]:
    """Say what would become of the pods of these manifests, if they were created in this order."""
    reader = PodReader(dialects.read_pod)
    asked = [
        reader.read(fetch.dry_run_pod(client, str(section(pod, "metadata").get("namespace") or namespace), pod))
        for where, found in manifests
        for pod in _pods(where, found)
    ]
    state = read_state(client)
    for each in asked:
        state.put_pod(each)
    overview = read_overview(client, state)
    return [_preview(state, overview, each) for each in asked]


def _pods(where: str, found: Json) -> Iterator[dict[str, Any]]:
    """The pods that an object would create; those of a template get their names from the API server."""
    kind = str(found.get("kind"))
    if kind not in PATHS or kind == "SharePod":
        raise BadRequest(f"{where}: kind", kind, f"one of {', '.join(sorted(PATHS.keys() - {'SharePod'}))}")
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", **pod_of_template(kind, found)}
    if kind == "Pod":
        yield pod
        return
    spec, name = section(found, "spec"), pod["metadata"].pop("name")
    pod["metadata"]["generateName"] = f"{name}-"
    if kind in {"Job", "CronJob"}:  # which must say this, while a pod's default is another
        pod["spec"] = {"restartPolicy": "Never", **pod["spec"]}
    count = spec.get("replicas", spec.get("parallelism", 1))
    for _ in range(parse_whole(f"{where}: replicas or parallelism", count, 0, COPIES_MAX)):
        yield pod


def _preview(state: ClusterState, overview: QueueOverview, pod: ObservedPod) -> PodPreview:
    ref, entry = pod.spec.pod, state.entry(pod.uid)
    if not pod.spec.wants_gpu or entry is None:
        text = "requests no GPU"
    elif pod.spec.takes_turns and pod.queued:
        text = overview.explain(pod.uid)
    else:
        text = _explain(state, entry)
    return PodPreview(ref.namespace, ref.name, text)


def _explain(state: ClusterState, entry: PodEntry) -> str:
    """Explain a pod of no queue, and keep its place, because those after it come later."""
    grant = state.reservations.nominate(entry) if entry.spec.request is not None else None
    if grant is not None:
        return f"starts at once on {grant.node}; {describe_grant(grant)}"
    parts = [explain_waiting(state, entry.spec), explain_room(state, entry.spec, lower_priority(entry.spec))]
    if entry.spec.request is not None:
        now = time.time()
        rows = state.nodes.mask(entry.spec.constraints)
        opening = find_opening(state.placer, entry.spec.request, PodEnds(state, now), rows)
        parts.append(describe_latest_start(latest_start(opening)))
    return "; ".join(each for each in parts if each)
