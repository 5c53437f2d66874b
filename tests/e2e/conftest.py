"""What tests of several modules put onto the shared clusters."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.kwok import KwokNodes
from devcluster.platform import Platform, install_platform
from milligpu.model.versions import parse_version
from tests.e2e.scheduling import gpu_nodes

version = partial(parse_version, "version")
A100_40, A100_80 = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"
VGPU = {"vgpu.type": "v100-8q-8GB", "milligpu.dev/vgpu.v100-8q": "true"}


@pytest.fixture(scope="session")
def hurt_platform(hurt_cluster: Cluster) -> Platform:
    """milligpu on the cluster that tests may hurt, with two GPUs on its node."""
    return install_platform(hurt_cluster, devices=2)


@pytest.fixture(scope="session")
def guarded(guarded_plane: Cluster) -> Cluster:
    """Nodes with GPUs, made before there are policies: then only a node's agent may write its inventory.

    Each module installs the policies, with or without the webhook, and runs a service of its own.
    """

    def add(prefix: str, count: int, cards: int, labels: Mapping[str, str] | None = None, **card: Any) -> KwokNodes:
        options = {"prefix": prefix, "taints": (), "labels": labels or {}}
        return gpu_nodes(guarded_plane.add_kwok_nodes, count, cards, options=options, **card)

    add("guarded", 2, 2)
    add("v100", 2, 8)
    add("a100", 1, 4, model=A100_40, mib=40960, driver=version("535.54.03"), cuda=version("12.2"))
    add("large", 1, 4, model=A100_80, mib=81920, driver=version("550.54.15"), cuda=version("12.4"))
    # A vGPU of 8 GB is half of that card.
    add("half", 2, 2, VGPU, model="GRID V100-8Q", mib=8192, milli=500)
    return guarded_plane
