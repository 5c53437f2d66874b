"""`milligpu migrate` on the objects that the charts of HAMi and of NVIDIA's device plugin and operator make."""

import json
from pathlib import Path
from typing import Any

import pytest

from milligpu.cli.main import run
from milligpu.installation.migrate import FormerSystem, plan_migration
from tests.cli.api_server import serve

HAMI_PLUGIN = {
    "metadata": {"name": "hami-device-plugin", "namespace": "kube-system"},
    "spec": {
        "template": {
            "spec": {
                "nodeSelector": {"gpu": "on"},
                "containers": [{"name": "device-plugin", "image": "projecthami/hami:v2.6.1"}],
            }
        }
    },
}
NVIDIA_PLUGIN = {
    "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "kube-system"},
    "spec": {
        "template": {"spec": {"containers": [{"name": "ctr", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"}]}}
    },
}


def node(name: str, gpus: int, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}


def pod(name: str, limits: dict[str, int], node_name: str = "", **owner: str) -> dict[str, Any]:
    owners = [{"kind": kind, "name": text, "controller": True} for kind, text in owner.items()]
    container = {"name": "main", "resources": {"limits": {key: str(value) for key, value in limits.items()}}}
    return {
        "metadata": {"name": name, "namespace": "team", "ownerReferences": owners},
        "spec": {"nodeName": node_name, "containers": [container]},
        "status": {"phase": "Running"},
    }


HAMI_SHARE = {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30, "nvidia.com/gpumem": 3000}


def test_hamis_workloads_are_read_and_emptier_nodes_come_first() -> None:
    pods = [pod(f"train-{at}", HAMI_SHARE, "busy", Job="train") for at in range(2)]
    pods += [pod("bad", {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 300}, "idle"), pod("plain", {})]
    nodes = [node("busy", 10, gpu="on"), node("idle", 10, gpu="on"), node("cpu", 0)]
    plan = plan_migration(FormerSystem.HAMI, nodes, pods, [HAMI_PLUGIN, NVIDIA_PLUGIN])
    train, bad = plan.workloads
    assert (train.owner, train.pods, train.dialect) == ("Job/train", 2, "hami")
    assert train.meaning.startswith("main: 1 x 0.3 with memory 3000Mi")
    assert bad.owner == "Pod/bad"
    assert "gpucores" in bad.refused
    assert [(each.name, each.gpu_pods) for each in plan.nodes] == [("idle", 1), ("busy", 2)]
    assert "kubectl label node idle gpu-" in plan.nodes[0].commands
    assert any("refused workloads first" in text for text in plan.differences)


def test_nvidias_whole_gpus_stay_whole_and_its_operator_leaves_by_its_own_label() -> None:
    operated = node("n1", 8, **{"nvidia.com/gpu.deploy.device-plugin": "true"})
    pods = [pod("a", {"nvidia.com/gpu": 2}, "n1", ReplicaSet="web")]
    plan = plan_migration(FormerSystem.NVIDIA, [operated, node("n2", 4)], pods, [HAMI_PLUGIN, NVIDIA_PLUGIN])
    assert [each.meaning for each in plan.workloads] == ["main: 2 x whole"]
    plain, with_operator = plan.nodes
    assert "kubectl label node n1 nvidia.com/gpu.deploy.device-plugin=false --overwrite" in with_operator.commands
    assert any("kube-system/nvidia-device-plugin-daemonset off nodes with" in line for line in plain.commands)
    assert "kubectl label node n2 milligpu.dev/managed=true" in plain.commands


def test_the_command_reads_the_cluster_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(tmp_path) as (api, kubeconfig):
        api.put_list("/api/v1/nodes", node("n1", 10, gpu="on"))
        api.put_list("/api/v1/pods", pod("train", HAMI_SHARE, "n1"))
        api.put_list("/apis/apps/v1/daemonsets", HAMI_PLUGIN)
        assert run(["migrate", "--from", "hami", "--kubeconfig", str(kubeconfig)]) == 0
        shown = capsys.readouterr().out
        assert run(["migrate", "--from", "hami", "--kubeconfig", str(kubeconfig), "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["nodes"][0]["name"] == "n1"
        assert api.patches == {}
    assert "Pod/train" in shown
    assert "kubectl drain n1" in shown
