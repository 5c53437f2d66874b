"""A real node with software GPUs and our agent on it, for tests that run containers on shares."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
from lightkube.resources.core_v1 import Node as KubeNode
from lightkube.resources.core_v1 import Pod

from devcluster import images
from devcluster.cluster import Cluster
from devcluster.node import Node
from devcluster.pods import pod
from devcluster.process import Process
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.units import parse_quantity
from milligpu.softgpu.start import client_environment
from milligpu.wire.inventory import decode_inventory
from tests.e2e.scheduling import free_port

CARDS = Path("/run/milligpu/softgpu")
"""Where the node has its cards' sockets."""
READY_DEADLINE_S = 60.0


class GpuNode:
    """The agent and the cards of one real node; a test may kill and start the agent."""

    def __init__(self, cluster: Cluster, node: Node, *, devices: int = 2, model: str = "V100-16GB") -> None:
        self.cluster = cluster
        self.node = node
        self._start_cards(devices, model)
        program = str(Path(sys.executable).with_name("milligpu"))
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [program, "agent", "--node", node.name, "--kubeconfig", str(cluster.kubeconfig)]
        command += ["--listen", self.url.removeprefix("http://")]
        self.agent: Process = node.new_process("agent", command, self.environment())

    def _start_cards(self, devices: int, model: str) -> None:
        self.node.run_inside("mkdir", "-p", str(CARDS.parent))
        cache = Path.home() / ".cache/milligpu/softgpu"
        done = self.node.run_inside(
            *(sys.executable, "-m", "milligpu.softgpu.daemon", str(CARDS), "--cache", str(cache)),
            *("--model", model, "--devices", str(devices), "--watch", str(self.node.holder.pid)),
        )
        assert done.returncode == 0, done.stderr

    def environment(self) -> Mapping[str, str]:
        return client_environment(CARDS, {"PATH": "/usr/bin:/bin"})

    def start(self) -> "GpuNode":
        self.agent.start()
        return self

    def wait_ready(self) -> "GpuNode":
        def ready() -> bool:
            self.agent.must_run()
            registered = httpx2.get(f"{self.url}/readyz", timeout=5).status_code == 200
            return registered and self.allocatable(names.VGPU) > 0 and bool(self.inventory())

        until(
            "the node to have shares",
            ready,
            READY_DEADLINE_S,
            last_state=lambda: self.agent.tail(20),
            retry=(httpx2.TransportError,),
        )
        return self

    def _object(self) -> dict[str, Any]:
        found: Any = self.cluster.client.get(KubeNode, self.node.name)
        return found.to_dict()

    def allocatable(self, resource: str) -> int:
        """How many slots the kubelet offers."""
        found = self._object()
        return int(parse_quantity(resource, found["status"].get("allocatable", {}).get(resource, "0")))

    def inventory(self) -> tuple[Gpu, ...]:
        """The cards as the node's annotation has them."""
        text: str | None = self._object()["metadata"].get("annotations", {}).get(names.INVENTORY)
        return decode_inventory(text) if text else ()


def cuda_pod(name: str, milli: int, program: str, *, mib: int | None = None, **spec: Any) -> Pod:
    """A pod that runs a Python program on a share."""
    resources = {names.VGPU: str(milli)} | ({names.VGPU_MEMORY: str(mib)} if mib else {})
    return pod(name, ["python3", "-c", program], resources=resources, image=images.CUDA.reference, **spec)
