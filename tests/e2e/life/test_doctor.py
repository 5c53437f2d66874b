"""The doctor on a real node: all is well, and each thing that is broken is found, with what mends it."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from devcluster.platform import GpuNode
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.gpu import State
from milligpu.softgpu.start import inject_fault
from tests.e2e.life.conftest import on_node

pytestmark = pytest.mark.e2e


def options(gpu_node: GpuNode) -> list[str]:
    listen = gpu_node.url.removeprefix("http://")
    return ["--node", gpu_node.node.name, "--kubeconfig", str(gpu_node.kubeconfig), "--listen", listen]


def findings(gpu_node: GpuNode, *more: str) -> dict[str, Any]:
    done = on_node(gpu_node, "doctor", "-o", "json", *options(gpu_node), *more)
    found = {each["what"]: each for each in json.loads(done.stdout)}
    assert done.returncode == (0 if all(each["passed"] for each in found.values()) else 1), done.stderr
    return found


def failed(gpu_node: GpuNode, *more: str) -> set[str]:
    found = findings(gpu_node, *more)
    assert all(each["fix"] for each in found.values() if not each["passed"])
    return {what for what, each in found.items() if not each["passed"]}


def test_everything_passes_on_a_node_that_works(gpu_node: GpuNode) -> None:
    assert failed(gpu_node) == set()
    shown = on_node(gpu_node, "doctor", *options(gpu_node))
    assert shown.returncode == 0
    assert "FAIL" not in shown.stdout


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        ("--runtime-socket", "/run/nobody.sock", "container runtime"),
        ("--cdi-dir", "/run/elsewhere", "CDI"),
        ("--state-dir", "/etc/hostname/milligpu", "state folder"),
        ("--node", "stranger", "node"),
        ("--listen", "127.0.0.1:1", "agent"),
    ],
)
def test_what_is_not_where_it_should_be_has_its_line(gpu_node: GpuNode, option: str, value: str, line: str) -> None:
    assert failed(gpu_node, option, value) == {line}


def test_a_kubelet_that_is_not_there_is_missed_twice(gpu_node: GpuNode) -> None:
    assert failed(gpu_node, "--kubelet-dir", "/run/nowhere") == {"device plugins", "pod resources"}


def test_an_account_without_rights_is_told_which(gpu_node: GpuNode) -> None:
    kubelet = gpu_node.cluster.control_plane.pki.node_kubeconfig(gpu_node.node.name)
    found = findings(gpu_node, "--kubeconfig", str(kubelet))
    assert not found["rights"]["passed"]
    assert "create pods/eviction" in found["rights"]["detail"] or "list nodes" in found["rights"]["detail"]
    nowhere = findings(gpu_node, "--kubeconfig", "/run/no.kubeconfig")
    assert not nowhere["API server"]["passed"]


def test_another_plugin_for_the_same_cards_is_found(gpu_node: GpuNode) -> None:
    path = gpu_node.node.kubelet_dir / "device-plugins/nvidia-gpu.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        assert failed(gpu_node) == {"other GPU plugins"}
    Path(path).unlink()


def test_a_sick_card_and_one_without_an_agent_are_found(gpu_node: GpuNode) -> None:
    inject_fault(gpu_node.cards, "0", {"lost": True})
    found = findings(gpu_node)
    inject_fault(gpu_node.cards, "0", {"clear": True})
    assert not found["gpu 0"]["passed"]
    until("the card to be well", lambda: gpu_node.inventory()[0].state is State.OK, 60)
    gpu_node.agent.kill()
    without = failed(gpu_node)
    gpu_node.start()
    assert "agent" in without
    until("the slots to be back", lambda: gpu_node.allocatable(names.VGPU) == 1000, 60)
