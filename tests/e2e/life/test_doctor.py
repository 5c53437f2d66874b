"""`milligpu doctor` on a real node: all checks pass, and each broken thing fails its check with a fix."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from devcluster.platform import GpuNode
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.gpu import GpuState
from milligpu.softgpu.start import inject_fault
from tests.e2e.life.conftest import on_node

pytestmark = pytest.mark.e2e


def options(gpu_node: GpuNode) -> list[str]:
    listen = gpu_node.url.removeprefix("http://")
    return ["--node", gpu_node.node.name, "--kubeconfig", str(gpu_node.kubeconfig), "--listen", listen]


def is_error(result: dict[str, str]) -> bool:
    return (result["result"], result["level"]) == ("failed", "error")


def results(gpu_node: GpuNode, *more: str) -> dict[str, Any]:
    done = on_node(gpu_node, "doctor", "-o", "json", *options(gpu_node), *more)
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert done.returncode == (1 if any(map(is_error, found.values())) else 0), done.stderr
    return found


def failed(gpu_node: GpuNode, *more: str) -> set[str]:
    found = results(gpu_node, *more)
    assert all(each["fix"] for each in found.values() if each["result"] == "failed")
    return {name for name, each in found.items() if is_error(each)}


def test_all_checks_pass_on_a_working_node(gpu_node: GpuNode) -> None:
    assert failed(gpu_node) == set()
    assert "bound to this node; it expires 20" in results(gpu_node)["token"]["message"]
    shown = on_node(gpu_node, "doctor", *options(gpu_node))
    assert shown.returncode == 0
    assert "FAILED" not in shown.stdout


@pytest.mark.parametrize(
    ("option", "value", "lines"),
    [
        ("--runtime-socket", "/run/nobody.sock", {"container runtime"}),
        ("--cdi-dir", "/run/elsewhere", {"CDI"}),
        ("--state-dir", "/etc/hostname/milligpu", {"state directory"}),
        ("--run-dir", "/etc/hostname/milligpu", {"run directory"}),
        ("--node", "stranger", {"node", "token"}),
        ("--listen", "127.0.0.1:1", {"agent"}),
    ],
)
def test_a_wrong_path_or_name_fails_its_check(gpu_node: GpuNode, option: str, value: str, lines: set[str]) -> None:
    assert failed(gpu_node, option, value) == lines


def test_a_missing_kubelet_fails_two_checks(gpu_node: GpuNode) -> None:
    assert failed(gpu_node, "--kubelet-dir", "/run/nowhere") == {"device plugins", "pod resources"}


def test_missing_permissions_are_listed(gpu_node: GpuNode) -> None:
    kubelet = gpu_node.cluster.control_plane.pki.node_kubeconfig(gpu_node.node.name)
    found = results(gpu_node, "--kubeconfig", str(kubelet))
    assert is_error(found["permissions"])
    message = found["permissions"]["message"]
    assert "list nodes" in message
    nowhere = results(gpu_node, "--kubeconfig", "/run/no.kubeconfig")
    assert is_error(nowhere["API server"])
    assert is_error(nowhere["token"])


def test_another_plugin_for_the_same_gpus_fails_its_check(gpu_node: GpuNode) -> None:
    path = gpu_node.node.kubelet_dir / "device-plugins/nvidia-gpu.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        assert failed(gpu_node) == {"other GPU plugins"}
    Path(path).unlink()


def test_a_lost_gpu_and_a_missing_agent_fail_their_checks(gpu_node: GpuNode) -> None:
    inject_fault(gpu_node.softgpu_folder, "0", {"lost": True})
    found = results(gpu_node)
    inject_fault(gpu_node.softgpu_folder, "0", {"clear": True})
    assert is_error(found["GPU 0"])
    until("the card to be well", lambda: gpu_node.inventory()[0].state is GpuState.OK, 60)
    gpu_node.agent.kill()
    without = failed(gpu_node)
    gpu_node.start()
    assert "agent" in without
    until("the slots to be back", lambda: gpu_node.allocatable(names.VGPU) == 1000, 60)
