"""GPU servers in the cluster state: nodes for remote shares only."""

from typing import Any

import msgspec

from milligpu.cluster.explain import explain_waiting
from milligpu.cluster.read import read_cluster
from milligpu.cluster.servers import read_server, server_text
from milligpu.cluster.state import ClusterState
from milligpu.model import names
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.units import Mib
from milligpu.wire.grant import encode_grant
from milligpu.wire.inventory import encode_inventory
from milligpu.wire.kubernetes import KubeGpuServer, KubeNode, KubePod

READY = {"type": "Ready", "status": "True", "reason": "Serving", "message": ""}


def inventory(gpu: str) -> str:
    return encode_inventory([Gpu(gpu, "A100", Mib(8192))])


def server(name: str = "gpu-1", ready: dict[str, str] | None = None, **spec: Any) -> KubeGpuServer:
    status = {"gpus": 1, "inventory": msgspec.json.decode(inventory("GPU-remote")), "conditions": [ready or READY]}
    spec = {"address": "gpu-1:7070", "authority": "-----BEGIN CERTIFICATE-----", **spec}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec, "status": _raw(status)}, KubeGpuServer)


def _raw(status: dict[str, Any]) -> dict[str, Any]:
    return {**status, "inventory": msgspec.Raw(msgspec.json.encode(status["inventory"]))}


def node() -> KubeNode:
    meta = {"name": "n1", "annotations": {names.INVENTORY: inventory("GPU-local")}}
    allocatable = {"cpu": "8", "memory": "8Gi", names.VGPU: "1000"}
    return msgspec.convert({"metadata": meta, "status": {"allocatable": allocatable}}, KubeNode)


def pod(name: str, *, remote: bool, milli: int = 600) -> KubePod:
    resource = names.REMOTE_VGPU if remote else names.VGPU
    notes = {names.DIALECT: "native", **({names.ATTACH: "remote"} if remote else {})}
    limits = {resource: str(milli)}
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]}
    # The node would not do for either; a remote share does not ask for it.
    spec["nodeSelector"] = {"kubernetes.io/hostname": "elsewhere"} if remote else {}
    meta = {"name": name, "namespace": "team", "uid": name, "annotations": notes}
    return msgspec.convert({"metadata": meta, "spec": msgspec.Raw(msgspec.json.encode(spec))}, KubePod)


def state(*pods: KubePod, servers: tuple[KubeGpuServer, ...] = ()) -> ClusterState:
    return read_cluster([node()], pods, (), servers)


def place(found: ClusterState, uid: str) -> str | None:
    entry = found.entry(uid)
    assert entry is not None
    grant = found.reservations.nominate(entry)
    return None if grant is None else grant.node


def test_a_remote_pod_goes_to_a_server_and_no_other_pod_does() -> None:
    found = state(
        *(pod(f"r{at}", remote=True) for at in range(2)),
        *(pod(f"l{at}", remote=False) for at in range(2)),
        servers=(server(),),
    )
    assert [place(found, uid) for uid in ("r0", "r1", "l0", "l1")] == ["GpuServer/gpu-1", None, "n1", None]
    waiting = found.entry("r1")
    assert waiting is not None
    told = explain_waiting(found, waiting.spec)
    assert told.startswith("0/1 nodes: 1 InsufficientGPUCore (best: GpuServer/gpu-1/GPU-remote has 0.4 of 0.6 GPU)")
    assert not found.is_nominable(waiting.spec)


def test_a_server_that_is_silent_or_closed_gets_no_shares() -> None:
    drained = {**READY, "status": "False", "reason": "Draining", "message": "by an admin"}
    for closed in (server(ready=drained), server(cordoned=True)):
        assert place(state(pod("r0", remote=True), servers=(closed,)), "r0") is None
    late = read_server(server(), "the GPU server was last heard of at 12:00")
    assert {gpu.state for gpu in late.node.gpus} == {GpuState.NO_AGENT}
    assert place(state(pod("r0", remote=True)), "r0") is None


def test_a_bound_pod_holds_its_share_of_the_server() -> None:
    held = pod("r0", remote=True)
    grant = found_grant(held)
    meta = msgspec.structs.replace(
        held.metadata, annotations={**(held.metadata.annotations or {}), names.GRANT: grant}
    )
    spec = {**msgspec.json.decode(held.spec), "nodeName": "n1"}
    bound = msgspec.structs.replace(held, metadata=meta, spec=msgspec.Raw(msgspec.json.encode(spec)))
    found = state(bound, pod("r1", remote=True), pod("l0", remote=False), servers=(server(),))
    assert [place(found, uid) for uid in ("r1", "l0")] == [None, "n1"]
    entry = found.entry("r0")
    assert entry is not None
    assert entry.node == "GpuServer/gpu-1"


def found_grant(held: KubePod) -> str:
    fresh = state(held, servers=(server(),))
    entry = fresh.entry(held.metadata.uid)
    assert entry is not None
    grant = fresh.reservations.nominate(entry)
    assert grant is not None
    return encode_grant(grant)


def test_a_pod_gets_the_servers_address_and_ca() -> None:
    assert server_text(server()) == "gpu-1:7070\n-----BEGIN CERTIFICATE-----"
