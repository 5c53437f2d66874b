"""One cluster with one card for all tests of a node's life; each test finds the card free."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.platform import GpuNode, install_platform
from devcluster.wait import until

PROGRAM = str(Path(sys.executable).with_name("milligpu"))


@pytest.fixture(scope="session")
def gpu_node(life_cluster: Cluster) -> GpuNode:
    """A node as users have it: accounts, policies, scheduler service, agent."""
    return install_platform(life_cluster, devices=1).nodes[0]


@pytest.fixture
def namespace(gpu_node: GpuNode) -> Iterator[str]:
    """A namespace of the test's own; what ran in it is gone before the next test asks for the card."""
    with new_namespace(gpu_node.cluster) as name:
        yield name
    containers = gpu_node.node.folder / "run/milligpu/containers"
    until("everybody to be detached", lambda: not list(containers.iterdir()), 60)


def milligpu(gpu_node: GpuNode, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command of a user's, anywhere."""
    command = [PROGRAM, words[2], *words[3:], *words[:2]] if words[0] == "-n" else [PROGRAM, *words]
    kubeconfig = ["--kubeconfig", str(gpu_node.cluster.kubeconfig)]
    return subprocess.run([*command, *kubeconfig], capture_output=True, text=True, check=False)


def on_node(gpu_node: GpuNode, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command on the node itself, where the cards are."""
    environment = [f"{key}={value}" for key, value in gpu_node.environment().items()]
    return gpu_node.node.run_inside("env", *environment, PROGRAM, *words)
