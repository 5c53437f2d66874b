"""The container runtime over CRI: its name, version and configuration, and what became of a pod in it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc.aio

from milligpu.kubelet import rpc
from milligpu.kubelet._generated import cri_pb2 as pb
from milligpu.model.errors import Unavailable

_TIMEOUT_S = 5.0
_SERVICE = "/runtime.v1.RuntimeService"
# The label by which the kubelet marks all that it creates for a pod.
_POD_UID = "io.kubernetes.pod.uid"


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    name: str
    version: str
    config: Mapping[str, Any]
    """The runtime's configuration; empty if it does not report one."""

    @property
    def release(self) -> tuple[int, int]:
        """The version's first two numbers; 0 for what is not a number."""
        parts = self.version.lstrip("v").split(".")
        numbers = [int(part) if part.isdigit() else 0 for part in (*parts, "", "")[:2]]
        return numbers[0], numbers[1]


async def ask_runtime(socket: Path) -> RuntimeInfo:
    async with rpc.channel(socket) as runtime:
        try:
            version = await rpc.call(
                runtime, f"{_SERVICE}/Version", pb.VersionRequest(), pb.VersionResponse, _TIMEOUT_S
            )
            status = await rpc.call(
                runtime, f"{_SERVICE}/Status", pb.StatusRequest(verbose=True), pb.StatusResponse, _TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"no container runtime at {socket}: {error.details()}") from None
    return RuntimeInfo(version.runtime_name, version.runtime_version, _config(status.info.get("config", "")))


@dataclass(frozen=True, slots=True)
class RuntimePod:
    """What the runtime has of one pod."""

    sandboxes: int
    ready_sandboxes: int
    created: int
    """Containers that were created and never started."""
    others: int
    """Containers that run, have ended, or are in a state that the runtime does not know."""

    @property
    def never_starts(self) -> bool:
        """Whether a container was created that cannot start, because its sandbox is dead, and none has run."""
        return bool(self.created and self.sandboxes) and not self.ready_sandboxes and not self.others


async def ask_about_pod(socket: Path, uid: str) -> RuntimePod:
    """Ask the runtime for a pod's sandboxes and containers."""
    labels = {_POD_UID: uid}
    sandbox_request = pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector=labels))
    container_request = pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=labels))
    async with rpc.channel(socket) as runtime:
        try:
            sandboxes = await rpc.call(
                runtime, f"{_SERVICE}/ListPodSandbox", sandbox_request, pb.ListPodSandboxResponse, _TIMEOUT_S
            )
            containers = await rpc.call(
                runtime, f"{_SERVICE}/ListContainers", container_request, pb.ListContainersResponse, _TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"no container runtime at {socket}: {error.details()}") from None
    created = sum(each.state == pb.CONTAINER_CREATED for each in containers.containers)
    ready = sum(each.state == pb.SANDBOX_READY for each in sandboxes.items)
    return RuntimePod(len(sandboxes.items), ready, created, len(containers.containers) - created)


def _config(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
