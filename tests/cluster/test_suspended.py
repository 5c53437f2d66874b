"""A node whose VM is suspended: its GPUs are neither free nor lost, and waiting pods hear when it resumes."""

import json

import msgspec

from milligpu import dialects
from milligpu.cluster.explain import explain_waiting
from milligpu.cluster.read import PodReader, read_cluster
from milligpu.model import names
from milligpu.model.gpu import GpuState
from milligpu.wire import kubernetes
from milligpu.wire.kubernetes import KubeCondition, Taint
from tests.cluster.objects import node, pod

UNTIL = "The VM of this node is suspended by its layout: resumes at 07:00"


def suspended(name: str, *more: Taint, condition: bool = True) -> kubernetes.KubeNode:
    found = node(name)
    taints = [Taint(names.SUSPENDED, "NoSchedule"), Taint(names.SUSPENDED, "NoExecute"), *more]
    conditions = [KubeCondition(names.SUSPENDED_CONDITION, "True", "Suspended", UNTIL)] if condition else []
    return msgspec.structs.replace(
        found,
        spec=msgspec.structs.replace(found.spec, taints=taints),
        status=msgspec.structs.replace(found.status, conditions=conditions),
    )


def explained(*nodes: kubernetes.KubeNode) -> str:
    waiting = kubernetes.decode_pod(json.dumps(pod("a", 300)).encode())
    return explain_waiting(read_cluster(nodes, ()), PodReader(dialects.read_pod).read(waiting).spec)


def test_a_waiting_pod_hears_when_the_node_resumes_also_once_its_kubelet_is_away() -> None:
    away = Taint("node.kubernetes.io/unreachable", "NoExecute")
    for each in (suspended("w1"), suspended("w1", away)):
        assert explained(each).startswith("0/1 nodes: 1 Suspended (w1/GPU-")
        assert UNTIL in explained(each)
    about = explained(suspended("w1", condition=False))
    assert "the VM of this node is about to be suspended, or to take pods again" in about


def test_other_taints_of_a_suspended_node_still_count() -> None:
    assert "NodeExcluded" in explained(suspended("w1", Taint("dedicated", "NoSchedule")))


def test_gpus_of_a_suspended_node_are_neither_free_nor_lost() -> None:
    state = read_cluster([suspended("w1"), node("w2")], ())
    states = {name: {gpu.state for gpu in each.gpus} for name, each in state.placer.snapshot.nodes.items()}
    assert states == {"w1": {GpuState.SUSPENDED}, "w2": {GpuState.OK}}
    assert all(gpu.message == UNTIL for gpu in state.placer.snapshot.nodes["w1"].gpus)
