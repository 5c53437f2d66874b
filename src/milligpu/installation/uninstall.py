"""What uninstalling milligpu does in a cluster, before and after its objects are deleted."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from milligpu.installation.node_object import conditions_patch, metadata_patch
from milligpu.kube.api import JSON_PATCH, MERGE_PATCH, METADATA_ONLY, STRATEGIC_PATCH, ApiClient, ApiRefused
from milligpu.kube.events import EventRecorder, NodeEvent, PodEvent
from milligpu.manifests.rbac import KUBE_SCHEDULER_LEASE, SCHEDULER, TEST_POD
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.reasons import EventReason
from milligpu.model.request import PodRef

PROGRAMS = ("milligpu-agent", "milligpu-scheduler", "milligpu-softgpu")
"""The label `app` of the pods that write into the cluster or onto nodes."""
CLEANUP = "milligpu-cleanup"
"""The DaemonSet of the chart that removes files from nodes."""
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/"
LEFT = {
    "Lease": [_LEASES + SCHEDULER, _LEASES + KUBE_SCHEDULER_LEASE],
    # Helm keeps it, because its log is the result.
    "Pod": ["/api/v1/namespaces/{namespace}/pods/" + TEST_POD],
}
"""Objects in milligpu's namespace that no installation made, by kind."""
_LOOK_S = 0.5
_TRIES = 5
_NOT_FOUND, _CONFLICT = 404, 409
_PODS_MESSAGE = (
    "milligpu is being uninstalled: this pod keeps its GPU until it ends, but a container that restarts gets none, "
    "and limits are no longer adjusted. Delete the pod"
)
_QUEUE_MESSAGE = "milligpu is being uninstalled: no scheduler gives this pod a GPU any more. Delete the pod"
_NODE_MESSAGE = "milligpu is uninstalled, but its files are still on this node. Run there: milligpu uninstall node"

Report = Callable[[str], None]


async def announce(api: ApiClient, report: Report) -> None:
    """Write an event on every pod that still holds a GPU, or waits for one in a queue."""
    events = _recorder(api)
    for pod in await _list(api, "/api/v1/pods"):
        ref = _ref(pod)
        if _holds_gpu(pod):
            events.record(PodEvent(ref, EventReason.UNINSTALLING, "Uninstall", _PODS_MESSAGE))
            report(f"pod {ref.namespace}/{ref.name} still uses a GPU")
        elif queue_gate(pod) is not None:
            events.record(PodEvent(ref, EventReason.UNINSTALLING, "Uninstall", _QUEUE_MESSAGE))
            report(f"pod {ref.namespace}/{ref.name} waits for a GPU in a queue")
    await _post(events)


async def clean_cluster(api: ApiClient, namespace: str, report: Report, deadline_s: float) -> None:
    """Wait until nothing of milligpu runs, then remove what it wrote into Node objects, and what is left of it."""
    await _programs_gone(api, namespace, deadline_s)
    left = await _nodes_cleaned(api, namespace, deadline_s)
    events = _recorder(api)
    for node in await _list(api, "/api/v1/nodes"):
        name: str = node["metadata"]["name"]
        if await _clean_node_object(api, name):
            report(f"node {name}: removed milligpu's annotations, labels, taints and conditions")
        if name in left:
            report(f"node {name}: its files are still there; run on it: milligpu uninstall node")
            uid: str = node["metadata"].get("uid", "")
            events.record(NodeEvent(name, uid, EventReason.UNINSTALLING, "Uninstall", _NODE_MESSAGE))
    await _post(events)
    await _open_queues(api, report)
    await _delete_declared_classes(api, report)
    for kind, paths in LEFT.items():
        for path in paths:
            if await _found(api.send("DELETE", path.format(namespace=namespace))) is not None:
                report(f"removed {kind} {namespace}/{path.rpartition('/')[2]}")


def queue_gate(pod: dict[str, Any]) -> int | None:
    """Where the gate of queues is among a pod's scheduling gates."""
    gates: list[dict[str, str]] = pod["spec"].get("schedulingGates", [])
    return next((at for at, gate in enumerate(gates) if gate["name"] == names.QUEUE), None)


async def _open_queues(api: ApiClient, report: Report) -> None:
    """Remove the gates of queues: nobody else would, and a pod with a gate never gets a scheduling event."""
    for pod in await _list(api, "/api/v1/pods"):
        ref, at = _ref(pod), queue_gate(pod)
        if at is None:
            continue
        gate = f"/spec/schedulingGates/{at}"
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": ref.uid},
            {"op": "test", "path": f"{gate}/name", "value": names.QUEUE},
            {"op": "remove", "path": gate},
        ]
        path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"
        if await _found(api.send("PATCH", path, patch, kind=JSON_PATCH, accept=METADATA_ONLY)) is not None:
            report(f"pod {ref.namespace}/{ref.name}: removed the scheduling gate of its queue")


async def _delete_declared_classes(api: ApiClient, report: Report) -> None:
    """Delete the classes of the chart's values; those that people created stay with their definition."""
    found = await _found(api.get(f"{names.CLASSES_PATH}?labelSelector={names.DECLARED}%3Dtrue"))
    items: list[dict[str, Any]] = [] if found is None else msgspec.json.decode(found)["items"]
    for each in items:
        name: str = each["metadata"]["name"]
        if await _found(api.send("DELETE", f"{names.CLASSES_PATH}/{name}")) is not None:
            report(f"removed GpuClass {name}")


async def _programs_gone(api: ApiClient, namespace: str, deadline_s: float) -> None:
    """A program that still runs would write again what is removed."""
    selector = f"labelSelector=app+in+({','.join(PROGRAMS)})"
    end = time.monotonic() + deadline_s
    while pods := await _list(api, f"/api/v1/namespaces/{namespace}/pods?{selector}"):
        if time.monotonic() >= end:
            running = ", ".join(sorted(pod["metadata"]["name"] for pod in pods))
            raise Unavailable(f"still running in {namespace}: {running}", hint="run: helm uninstall milligpu")
        await asyncio.sleep(_LOOK_S)


async def _nodes_cleaned(api: ApiClient, namespace: str, deadline_s: float) -> set[str]:
    """Wait for the DaemonSet that removes files, if there is one, and return the nodes on which it could not."""
    end = time.monotonic() + deadline_s
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{CLEANUP}"
    while (found := await _found(api.get(path))) is not None:
        daemons = msgspec.json.decode(found)
        status: dict[str, Any] = daemons.get("status", {})
        current = status.get("observedGeneration") == daemons["metadata"]["generation"]
        if current and status.get("numberReady", 0) == status.get("desiredNumberScheduled"):
            return set()
        if time.monotonic() >= end:
            return {name for name in await _unready(api, namespace) if name}
        await asyncio.sleep(_LOOK_S)
    return set()


async def _unready(api: ApiClient, namespace: str) -> Iterator[str]:
    pods = await _list(api, f"/api/v1/namespaces/{namespace}/pods?labelSelector=app={CLEANUP}")
    return (
        pod["spec"].get("nodeName", "")
        for pod in pods
        if not any(
            each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ())
        )
    )


async def _clean_node_object(api: ApiClient, name: str) -> bool:
    """Return whether there was something to remove."""
    path = f"/api/v1/nodes/{name}"
    changed = False
    for attempt in range(_TRIES):
        node = msgspec.json.decode(await api.get(path))
        try:
            if patch := metadata_patch(node):
                await api.send("PATCH", path, patch, kind=MERGE_PATCH, accept=METADATA_ONLY)
                changed = True
            if conditions := conditions_patch(node):
                await api.send("PATCH", f"{path}/status", conditions, kind=STRATEGIC_PATCH, accept=METADATA_ONLY)
                changed = True
        except ApiRefused as error:
            if error.status != _CONFLICT or attempt == _TRIES - 1:
                raise
            continue
        return changed
    return changed


async def _list(api: ApiClient, path: str) -> list[dict[str, Any]]:
    return msgspec.json.decode(await api.get(path, timeout_s=60.0))["items"]


async def _found(request: Awaitable[bytes]) -> bytes | None:
    """The answer, or None if there is no such object."""
    try:
        return await request
    except ApiRefused as error:
        if error.status != _NOT_FOUND:
            raise
        return None


def _holds_gpu(pod: dict[str, Any]) -> bool:
    finished = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
    return not finished and names.GRANT in pod["metadata"].get("annotations", {})


def _ref(pod: dict[str, Any]) -> PodRef:
    meta = pod["metadata"]
    return PodRef(meta["namespace"], meta["name"], meta.get("uid", ""))


def _recorder(api: ApiClient) -> EventRecorder:
    return EventRecorder(api, "milligpu.dev/uninstall", "uninstall", time.monotonic)


async def _post(events: EventRecorder) -> None:
    running = asyncio.create_task(events.run())
    await events.drained()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
