"""GPU servers as the cluster state has them: nodes on which no pod runs, with GPUs for remote shares."""

from dataclasses import replace

from milligpu.cluster.node_constraints import NodeFacts
from milligpu.cluster.observed import ObservedNode
from milligpu.model.attach import server_node
from milligpu.model.errors import BadFormat
from milligpu.model.gpu import Gpu, GpuState, Node
from milligpu.wire.inventory import decode_inventory
from milligpu.wire.kubernetes import KubeGpuServer

READY = "Ready"


def read_server(server: KubeGpuServer, silent: str = "") -> ObservedNode:
    """Read a GpuServer; `silent` says why its status is out of date, as when it has not been written for long."""
    name = server_node(server.metadata.name)
    problem = ""
    try:
        gpus = decode_inventory(bytes(server.status.inventory)) if server.status.gpus else ()
    except BadFormat as error:
        gpus, problem = (), error.message
    closed = silent or _closed(server)
    if closed:
        gpus = tuple(_away(gpu, closed) for gpu in gpus)
    elif server.spec.cordoned:
        gpus = tuple(replace(gpu, state=GpuState.CORDONED) for gpu in gpus)
    return ObservedNode(Node(name, gpus), NodeFacts(name, remote=True), problem)


def _away(gpu: Gpu, why: str) -> Gpu:
    return replace(gpu, state=GpuState.NO_AGENT, message=why)


def _closed(server: KubeGpuServer) -> str:
    """Say why the server itself says that it opens no sessions; empty if it does."""
    for condition in server.status.conditions or ():
        if condition.type == READY and condition.status != "True":
            return f"the GPU server says {condition.reason}: {condition.message}"
    return "" if server.status.conditions else "the GPU server has not reported yet"


def server_text(server: KubeGpuServer) -> str:
    """Return what a pod's client needs to reach the server: the address, and the CA in PEM."""
    return f"{server.spec.address}\n{server.spec.authority}"
