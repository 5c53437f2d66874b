"""Filter calls with whole Node objects, as an autoscaler sends them for nodes that do not exist yet. Pure.

An autoscaler asks whether a pod would fit on a node of some type before it adds one. The answer is simulated:
nothing is reserved, and the cluster state stays as it is. A node that the cluster has is judged by what is free
there.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from milligpu.cluster.read import NodeReader
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import BadFormat
from milligpu.model.gpu import Gpu, GpuState, Node
from milligpu.model.request import PodRequest
from milligpu.model.units import Mib
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.wire.kubernetes import KubeNode

_COUNT, _MEMORY, _PRODUCT = "nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.product"
# More GPUs than any machine has: an autoscaler's template must not fill the service's memory.
_GPUS_MAX = 64
_nodes = msgspec.json.Decoder(list[msgspec.Raw])
_node = msgspec.json.Decoder(KubeNode)


def filter_templates(state: ClusterState, request: PodRequest | None, items: bytes, reason: str) -> bytes:
    """Answer which of these Node objects could take the pod; `reason` is for the others. Raises `BadFormat`."""
    try:
        found = _nodes.decode(items)
        nodes = [_node.decode(each) for each in found]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFormat("Nodes", str(error)) from None
    fits = [request is not None and _fits(state, request, node) for node in nodes]
    failed = {node.metadata.name: reason for node, good in zip(nodes, fits, strict=True) if not good}
    kept: Sequence[msgspec.Raw] = [raw for raw, good in zip(found, fits, strict=True) if good]
    return msgspec.json.encode({"Nodes": {"items": kept}, "FailedAndUnresolvableNodes": failed})


def _fits(state: ClusterState, request: PodRequest, node: KubeNode) -> bool:
    name = node.metadata.name
    if name in state.placer.snapshot.rows_of:
        return state.placer.place_on(request, state.placer.mask([name])) is not None
    placer = Placer(Snapshot(), classes=state.placer.classes)
    placer.snapshot.add(template_node(node))
    return placer.place_on(request, None) is not None


def template_node(node: KubeNode) -> Node:
    """Return the node as it will be: with the GPUs of the node that it was copied from, or those of its labels."""
    observed = NodeReader().read(node)
    assert observed is not None, "a new reader has seen nothing"
    # The agent and the health of the node from which a template was made say nothing about the next one.
    gpus = tuple(replace(gpu, state=GpuState.OK, message="") for gpu in observed.node.gpus)
    return replace(observed.node, gpus=gpus or _labeled(node.metadata.labels or {}))


def _labeled(labels: "dict[str, str]") -> tuple[Gpu, ...]:
    """The GPUs of a node type that never had a node, by the labels that NVIDIA's feature discovery would write."""
    count, memory = labels.get(_COUNT, ""), labels.get(_MEMORY, "")
    if not (count.isdigit() and memory.isdigit() and int(memory) > 0):
        return ()
    model = labels.get(_PRODUCT, "")
    return tuple(Gpu(f"template-{at}", model, Mib(int(memory))) for at in range(min(int(count), _GPUS_MAX)))
