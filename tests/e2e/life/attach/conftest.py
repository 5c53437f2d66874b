"""The node as it is with NVIDIA's driver and container toolkit: software GPUs behind a stand-in driver root."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.platform import GpuNode
from devcluster.wait import until
from milligpu.model import names
from testing.driver_root import make_driver_root

DRIVER_ROOT = "/run/nvidia/driver"
"""Where the GPU Operator's driver container has its root on a node."""


@pytest.fixture(scope="module")
def nvidia_node(gpu_node: GpuNode, nvidia_toolkit: Path) -> Iterator[GpuNode]:
    """NVIDIA's toolkit wrote its CDI specification on the node, and the agent attaches by it."""
    root = gpu_node.node.folder / DRIVER_ROOT.lstrip("/")
    make_driver_root(root)
    generate_spec(gpu_node, nvidia_toolkit)
    # The root directory under another path, as an agent in a container sees it.
    gpu_node.upgrade("--driver-root", DRIVER_ROOT, "--host-root", "/proc/self/root")
    yield gpu_node
    gpu_node.upgrade()
    (gpu_node.node.cdi_dir / "nvidia.yaml").unlink()
    shutil.rmtree(root)
    until("all slots to be back", lambda: gpu_node.allocatable(names.VGPU) == 1000, 30)


def generate_spec(gpu_node: GpuNode, toolkit: Path) -> None:
    """Run `nvidia-ctk cdi generate` on the node, as the toolkit's service does at boot."""
    environment = [f"{key}={value}" for key, value in gpu_node.environment().items()]
    words = ("cdi", "generate", "--mode=nvml", "--output=/var/run/cdi/nvidia.yaml")
    roots = (f"--driver-root={DRIVER_ROOT}", f"--dev-root={DRIVER_ROOT}")
    hook = f"--nvidia-cdi-hook-path={toolkit}/nvidia-cdi-hook"
    done = gpu_node.node.run_inside("env", *environment, f"{toolkit}/nvidia-ctk", *words, *roots, hook)
    assert done.returncode == 0, done.stderr
