"""Changing the settings of GPUs, in an annotation of their node."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from milligpu.cli.gpu_uuid import find_uuid
from milligpu.kube import config
from milligpu.kube.api import MERGE_PATCH, ApiClient
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.policy import SharePolicy
from milligpu.wire.gpu_settings import GpuSettings, decode_gpu_settings, encode_gpu_settings
from milligpu.wire.inventory import decode_inventory
from milligpu.wire.kubernetes import KubeNode, ObjectList

# The agent sees the change at once and reads its GPUs every second.
_PATIENCE_S = 3.0
_LOOK_S = 0.1

SettingsChange = Callable[[GpuSettings, str], GpuSettings]
"""From the node's settings and the GPU's UUID to the changed settings."""


def change_gpu_settings(gpu: str, change: SettingsChange, kubeconfig: str | None) -> tuple[str, str]:
    """Change the settings of the GPU whose UUID begins with `gpu`; its UUID and its node."""
    [found] = asyncio.run(_change(gpu, change, kubeconfig, nodes_too=False))
    return found


def change_policy(target: str, policy: SharePolicy | None, kubeconfig: str | None) -> list[tuple[str, str]]:
    """Set the share policy of the GPU whose UUID begins with `target`, or of all GPUs of the node of this name."""

    def change(settings: GpuSettings, uuid: str) -> GpuSettings:
        return settings.set_policy(uuid, policy)

    return asyncio.run(_change(target, change, kubeconfig, nodes_too=True))


async def _change(
    target: str, change: SettingsChange, kubeconfig: str | None, *, nodes_too: bool
) -> list[tuple[str, str]]:
    async with ApiClient(config.find_cluster(kubeconfig)) as api:
        nodes = msgspec.json.decode(await api.get("/api/v1/nodes"), type=ObjectList[KubeNode]).items
        on_node = {node.metadata.name: _uuids(node) for node in nodes}
        if nodes_too and on_node.get(target):
            name, uuids = target, on_node[target]
        else:
            node_of = {uuid: name for name, found in on_node.items() for uuid in found}
            others = [name for name, found in on_node.items() if found] if nodes_too else []
            uuids = [find_uuid(target, node_of, others)]
            name = node_of[uuids[0]]
        node = next(node for node in nodes if node.metadata.name == name)
        text = names.gpu_settings_text(node.metadata.annotations)
        settings = decode_gpu_settings(text) if text else GpuSettings()
        for uuid in uuids:
            settings = change(settings, uuid)
        notes = {names.GPU_SETTINGS: encode_gpu_settings(settings), names.OLD_GPU_SETTINGS: None}
        await api.send("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": notes}}, kind=MERGE_PATCH)
        return [(uuid, name) for uuid in uuids]


def _uuids(node: KubeNode) -> list[str]:
    return [gpu.uuid for gpu in _gpus(node)]


def _gpus(node: KubeNode) -> tuple[Gpu, ...]:
    text = (node.metadata.annotations or {}).get(names.INVENTORY)
    try:
        return tuple(decode_inventory(text)) if text else ()
    except BadFormat:
        return ()


def gpu_when_offered(uuid: str, node: str, kubeconfig: str | None) -> Gpu | None:
    """The GPU as soon as its agent offers it again, or as the inventory has it after the longest wait."""
    return asyncio.run(_when_offered(uuid, node, kubeconfig))


async def _when_offered(uuid: str, node: str, kubeconfig: str | None) -> Gpu | None:
    async with ApiClient(config.find_cluster(kubeconfig)) as api:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            found = msgspec.json.decode(await api.get(f"/api/v1/nodes/{node}"), type=KubeNode)
            gpu = next((each for each in _gpus(found) if each.uuid == uuid), None)
            if gpu is None or gpu.state is GpuState.OK or time.monotonic() > deadline:
                return gpu
            await asyncio.sleep(_LOOK_S)


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
