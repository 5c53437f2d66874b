"""What the container runtime says about itself, over CRI."""

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


@dataclass(frozen=True, slots=True)
class Runtime:
    """A container runtime."""

    name: str
    version: str
    config: Mapping[str, Any]
    """Its own configuration, where it tells."""

    @property
    def release(self) -> tuple[int, int]:
        """The version's first two numbers; zeros where it does not read."""
        parts = self.version.lstrip("v").split(".")
        numbers = [int(part) if part.isdigit() else 0 for part in (*parts, "", "")[:2]]
        return numbers[0], numbers[1]


async def ask_runtime(socket: Path) -> Runtime:
    """Who is behind this socket."""
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
    return Runtime(version.runtime_name, version.runtime_version, _config(status.info.get("config", "")))


def _config(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
