"""Pods and nodes as the API server sends them, made short."""

from typing import Any

from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.grant import Grant
from milligpu.model.units import Mib
from milligpu.wire import kubernetes
from milligpu.wire.grant import encode_grant
from milligpu.wire.inventory import encode_inventory

MIB = Mib(16384)


def node(name: str, cards: int = 2, *, labels: dict[str, str] | None = None, **card: Any) -> kubernetes.KubeNode:
    like: dict[str, Any] = {"model": "T4", "mib": MIB, **card}
    gpus = [Gpu(f"GPU-{name}-{at}", **like) for at in range(cards)]
    meta = kubernetes.ObjectMeta(name=name, annotations={names.INVENTORY: encode_inventory(gpus)}, labels=labels)
    return kubernetes.KubeNode(meta, status=kubernetes.NodeStatus({"cpu": "64", "memory": "512Gi"}))


def pod(
    name: str,
    milli: int | None,
    *,
    notes: dict[str, str] | None = None,
    grant: Grant | None = None,
    phase: str = "Pending",
    nominated: str = "",
    **spec: Any,
) -> dict[str, Any]:
    limits = {} if milli is None else {names.VGPU: str(milli)}
    annotations = {**(notes or {}), **({names.GRANT: encode_grant(grant)} if grant is not None else {})}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations},
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "main", "resources": {"limits": limits}}],
            **({"nodeName": grant.node} if grant is not None else {}),
            **spec,
        },
        "status": {"phase": phase, "nominatedNodeName": nominated},
    }
