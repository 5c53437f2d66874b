"""Steps on the nodes in worker VMs: cordon, drain, mark as suspended, wait until they answer, take pods again.

A cordon is a taint of milligpu's own, so an admin's cordon stays what it is. Pods that tolerate the taint for ever
are suspended with their VM; all others are evicted through the eviction API, which respects disruption budgets,
those of the lowest priority first.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
import structlog

from milligpu.kube.api import JSON, MERGE_PATCH, METADATA_ONLY, STRATEGIC_PATCH, ApiClient, ApiRefused
from milligpu.layouts.actuator import StepFailed
from milligpu.layouts.journal import StepKind, SwitchStep
from milligpu.layouts.layout import PodTreatment
from milligpu.layouts.suspension import evicted_first, lease_problem, with_taints
from milligpu.model import names
from milligpu.model.reasons import NodeReason

NODE_STEPS = frozenset({StepKind.CORDON, StepKind.DRAIN, StepKind.MARK, StepKind.AWAIT, StepKind.UNCORDON})
LEASES_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_NOT_FOUND, _CONFLICT, _TOO_MANY = 404, 409, 429
# Answers that say that the same request will be refused again.
_FINAL = frozenset({400, 403, 422})

log = structlog.get_logger()


class NodeActuator:
    """Marks nodes, and empties them."""

    def __init__(self, api: ApiClient, wall: Callable[[], datetime]) -> None:
        """`wall` is the time of day in UTC."""
        self._api = api
        self._wall = wall

    async def do(self, step: SwitchStep) -> str:
        match step.kind:
            case StepKind.CORDON:
                return await self._taint(step, "NoSchedule")
            case StepKind.DRAIN:
                return await self._drain(step)
            case StepKind.MARK:
                return await self._mark(step, step.after)
            case StepKind.AWAIT:
                return await self._wait(step)
            case _:
                return await self._unmark(step)

    async def undo(self, step: SwitchStep) -> str:
        match step.kind:
            case StepKind.CORDON:
                return await self._unmark(step)
            case StepKind.MARK:
                # The VMs run again: their nodes must answer before pods are sent there.
                return await self._wait(step) or await self._taint(step, "NoSchedule")
            case StepKind.UNCORDON:
                return await self._mark(step, "")
            case _:
                return ""  # evicted pods are where their controllers created them again

    # -- marks -------------------------------------------------------------------------------------------------

    async def _taint(self, step: SwitchStep, *effects: str) -> str:
        waits = [await self._write_taints(name, effects) for name in step.targets]
        return _first(waits)

    async def _mark(self, step: SwitchStep, until: str) -> str:
        message = "The VM of this node is suspended by its layout" + (f": {until}" if until else "")
        for name in step.targets:
            await self._condition(name, "True", NodeReason.SUSPENDED, message)
        return await self._taint(step, "NoSchedule", "NoExecute")

    async def _unmark(self, step: SwitchStep) -> str:
        for name in step.targets:
            await self._condition(name, "False", NodeReason.RESUMED, "The VM of this node runs")
        return await self._taint(step)

    async def _write_taints(self, name: str, effects: tuple[str, ...]) -> str:
        path = f"/api/v1/nodes/{name}"
        node = await self._node(name)
        patch = None if node is None else with_taints(node, effects)
        if patch is None:
            return ""
        try:
            await self._api.send("PATCH", path, patch, kind=MERGE_PATCH, accept=METADATA_ONLY)
        except ApiRefused as error:
            if error.status in {_NOT_FOUND, _CONFLICT}:
                return f"{name} was changed meanwhile"
            raise _refused(error) from None
        log.info("Wrote taint of node", node=name, effects=effects)
        return ""

    async def _condition(self, name: str, status: str, reason: str, message: str) -> None:
        node = await self._node(name)
        if node is None:
            return
        present = [
            each for each in node["status"].get("conditions", ()) if each["type"] == names.SUSPENDED_CONDITION
        ]
        if not present and status == "False":
            return  # it was never suspended
        if present and (present[0]["status"], present[0].get("message")) == (status, message):
            return
        now = f"{self._wall():%Y-%m-%dT%H:%M:%SZ}"
        condition = {
            "type": names.SUSPENDED_CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }
        body = {"status": {"conditions": [condition]}}
        try:
            await self._api.send(
                "PATCH", f"/api/v1/nodes/{name}/status", body, kind=STRATEGIC_PATCH, accept=METADATA_ONLY
            )
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise _refused(error) from None

    async def _node(self, name: str) -> dict[str, Any] | None:
        return await self._get(f"/api/v1/nodes/{name}")

    async def _get(self, path: str) -> dict[str, Any] | None:
        try:
            return msgspec.json.decode(await self._api.get(path))
        except ApiRefused as error:
            if error.status == _NOT_FOUND:
                return None
            raise _refused(error) from None

    # -- pods --------------------------------------------------------------------------------------------------

    async def _drain(self, step: SwitchStep) -> str:
        waits = [await self._drain_node(name, PodTreatment(step.after)) for name in step.targets]
        return _first(waits)

    async def _drain_node(self, name: str, treatment: PodTreatment) -> str:
        listed = await self._get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}")
        pods: list[dict[str, Any]] = [] if listed is None else listed["items"]
        left, now = evicted_first(pods, keep=treatment is PodTreatment.KEEP)
        problem = ""
        for pod in now:
            problem = await self._evict(pod["metadata"]) or problem
        if not left:
            return ""
        return f"{name}: {problem}" if problem else f"{name}: {len(left)} pods have to end"

    async def _evict(self, meta: Mapping[str, Any]) -> str:
        """Ask for the eviction of a pod; return why it was refused."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            "deleteOptions": {"preconditions": {"uid": meta["uid"]}},
        }
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"
        try:
            await self._api.send("POST", path, body, kind=JSON, accept=METADATA_ONLY)
        except ApiRefused as error:
            if error.status == _TOO_MANY:
                return f"pod {meta['namespace']}/{meta['name']} may not be evicted now: {error.message}"
            if error.status not in {_NOT_FOUND, _CONFLICT}:
                raise _refused(error) from None
            return ""
        log.info("Evicted pod", pod=f"{meta['namespace']}/{meta['name']}", reason="Layout", uid=meta["uid"])
        return ""

    # -- nodes that come back ------------------------------------------------------------------------------------

    async def _wait(self, step: SwitchStep) -> str:
        waits = [await self._away(name, step.started or self._wall()) for name in step.targets]
        return _first(waits)

    async def _away(self, name: str, since: datetime) -> str:
        """Say what a node lacks; its kubelet must have renewed its Lease after `since`, with a clock in step."""
        node = await self._node(name)
        if node is None:
            return f"{name}: the node has not joined the cluster"
        lease = await self._get(f"{LEASES_PATH}/{name}")
        renewed = None if lease is None else lease["spec"].get("renewTime")
        problem = lease_problem(renewed, since, self._wall())
        if problem:
            return f"{name}: {problem}"
        ready = any(
            each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", ())
        )
        return "" if ready else f"{name}: the node is not Ready"


def _first(waits: list[str]) -> str:
    found = [each for each in waits if each]
    return "" if not found else found[0] + (f" and {len(found) - 1} more" if len(found) > 1 else "")


def _refused(error: ApiRefused) -> Exception:
    return StepFailed(error.message) if error.status in _FINAL else error
