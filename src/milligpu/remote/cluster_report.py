"""A GPU server's own `GpuServer` object: it creates it, and writes its GPUs and a heartbeat into its status."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any

import msgspec

from milligpu.kube.api import MERGE_PATCH, ApiClient, ApiRefused
from milligpu.model import names
from milligpu.model.errors import MilligpuError
from milligpu.model.gpu import ComputeCapability, Gpu, GpuState
from milligpu.model.policy import DEFAULT_POLICY
from milligpu.model.reasons import ServerReason
from milligpu.model.units import WHOLE, Mib, Milli
from milligpu.remote.server_status import machine_status
from milligpu.wire.inventory import encode_inventory
from milligpu.wire.kubernetes import KubeGpuServer
from milligpu.wire.status import GpuStatus, MachineStatus

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0
# What changes is reported this soon; pods wait for GPUs that become free.
_LOOK_SECONDS = 1.0
_NOT_FOUND = 404
# MachineStatus has neither; a pod that requires one of them must not be given a GPU that may lack it.
_UNKNOWN_CAPABILITY = ComputeCapability(0, 0)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What pods need to know of a server."""

    name: str
    address: str
    authority: str


class ClusterReport:
    """Keeps the GpuServer object of this server up to date."""

    def __init__(
        self,
        api: ApiClient,
        identity: ServerIdentity,
        of_pods: Callable[[], set[str]],
        draining: Callable[[], bool],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`of_pods` are the sessions of the cluster's own pods, which its scheduler counts itself."""
        self._api = api
        self._identity = identity
        self._of_pods = of_pods
        self._draining = draining
        self._now = now
        self._path = f"{names.SERVERS_PATH}/{identity.name}"

    async def run(self) -> None:
        """Report until cancelled; a cluster that is away is told when it is back."""
        written, at = b"", -HEARTBEAT_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            try:
                status = await machine_status()
                found = msgspec.json.encode(self._status(status))
                if found != written or loop.time() - at >= HEARTBEAT_SECONDS:
                    await self._write(msgspec.json.decode(found))
                    written, at = found, loop.time()
            except MilligpuError as error:
                log.warning("could not report to the cluster: %s", error.message)
                await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.sleep(_LOOK_SECONDS)

    def _status(self, status: MachineStatus) -> dict[str, Any]:
        own = self._of_pods()
        gpus = [inventory_gpu(each, _held_by_others(status, own, each)) for each in status.gpus]
        ready, reason, message = _condition(gpus, draining=self._draining())
        return {
            "gpus": len(gpus),
            "models": ", ".join(dict.fromkeys(gpu.model for gpu in gpus)),
            "inventory": msgspec.json.decode(encode_inventory(gpus)),
            "ready": [str(ready), reason, message],
        }

    async def _write(self, status: dict[str, Any]) -> None:
        server = await self._object()
        value, reason, message = status.pop("ready")
        before = next((each for each in server.status.conditions or () if each.type == "Ready"), None)
        now = f"{self._now():%Y-%m-%dT%H:%M:%SZ}"
        since = before.lastTransitionTime if before is not None and before.status == value else now
        condition = {
            "type": "Ready",
            "status": value,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since or now,
            "observedGeneration": server.metadata.generation,
        }
        body = {"status": {**status, "heartbeat": now, "conditions": [condition]}}
        await self._api.send("PATCH", f"{self._path}/status", body, kind=MERGE_PATCH)

    async def _object(self) -> KubeGpuServer:
        """Return the object, made or brought up to date; whether it is cordoned is the admin's."""
        spec = {"address": self._identity.address, "authority": self._identity.authority}
        try:
            found = msgspec.json.decode(await self._api.get(self._path), type=KubeGpuServer)
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise
            body = {
                "apiVersion": names.GROUP_VERSION,
                "kind": "GpuServer",
                "metadata": {"name": self._identity.name},
                "spec": spec,
            }
            return msgspec.json.decode(await self._api.send("POST", names.SERVERS_PATH, body), type=KubeGpuServer)
        if (found.spec.address, found.spec.authority) == (spec["address"], spec["authority"]):
            return found
        patched = await self._api.send("PATCH", self._path, {"spec": spec}, kind=MERGE_PATCH)
        return msgspec.json.decode(patched, type=KubeGpuServer)


def inventory_gpu(gpu: GpuStatus, reserved: Milli) -> Gpu:
    """Return a GPU as the scheduler service counts it; `reserved` is what pods cannot have of it."""
    states = {str(each): each for each in (GpuState.OK, GpuState.CORDONED)}
    return Gpu(
        gpu.uuid,
        gpu.model,
        Mib(gpu.mib),
        Milli(gpu.milli),
        reserved=reserved,
        capability=_UNKNOWN_CAPABILITY,
        policy=gpu.policy or DEFAULT_POLICY,
        state=states.get(gpu.state, GpuState.UNHEALTHY),
        message=gpu.message,
    )


def _held_by_others(status: MachineStatus, own: set[str], gpu: GpuStatus) -> Milli:
    """Return the part of a GPU that others hold: local commands, and clients with tokens of the pool."""
    held = [each for each in status.shares if each.gpu == gpu.uuid and each.session not in own]
    return reserved_part(gpu, ((each.milli, each.mib) for each in held))


def reserved_part(gpu: GpuStatus, held: Iterable[tuple[int, int]]) -> Milli:
    """Return the compute that covers these shares in compute and in memory."""
    held = list(held)
    milli = sum(each for each, _ in held)
    memory = ceil(WHOLE * sum(each for _, each in held) / gpu.mib)
    return Milli(min(gpu.milli, max(milli, memory)))


def _condition(gpus: list[Gpu], *, draining: bool) -> tuple[bool, str, str]:
    if draining:
        return False, ServerReason.DRAINING, "milligpu pool drain --undo ends it"
    if not gpus:
        return False, ServerReason.NO_GPU, "the server's machine has no GPU"
    return True, ServerReason.SERVING, f"{len(gpus)} GPUs"
