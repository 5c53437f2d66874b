"""A new agent takes over from the one that runs, again and again, and nobody notices."""

import threading
from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod

from devcluster import images
from devcluster.api import list_in
from devcluster.cluster import Cluster
from devcluster.platform import GpuNode
from devcluster.pods import pod
from devcluster.wait import until
from milligpu.model import names
from tests.e2e.life.test_resize import metric, start

pytestmark = pytest.mark.e2e

UPGRADES = 4
# Each holds a twentieth of the card for a moment; so many at once always fit.
AT_ONCE = 12


class Stream:
    """Pods that start one after the other, for as long as the block lasts."""

    def __init__(self, cluster: Cluster, namespace: str, image: str = images.CUDA.reference) -> None:
        self._client = cluster.client
        self._image = image
        self._namespace = namespace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.made = 0

    def __enter__(self) -> "Stream":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            if len(self.unfinished()) < AT_ONCE:
                made = pod(f"s{self.made}", ["true"], resources={names.VGPU: "50"}, image=self._image)
                self._client.create(made, namespace=self._namespace)
                self.made += 1

    def pods(self) -> dict[str, Any]:
        found: list[Any] = list_in(self._client, Pod, self._namespace)
        return {each.metadata.name: each for each in found if each.metadata.name.startswith("s")}

    def failed(self) -> dict[str, str]:
        """The pods that failed, and why."""
        return {name: each.status.message for name, each in self.pods().items() if each.status.phase == "Failed"}

    def unfinished(self) -> list[str]:
        ended = {"Succeeded", "Failed"}
        return [name for name, each in self.pods().items() if each.status.phase not in ended]


def test_pods_start_all_the_time_while_the_agent_is_upgraded_and_none_fails(
    gpu_node: GpuNode, namespace: str
) -> None:
    start(gpu_node, namespace, "tenant", 100, 1024)
    with Stream(gpu_node.cluster, namespace) as stream:
        for number in range(UPGRADES):
            before = stream.made
            gpu_node.upgrade()
            until(f"pods after upgrade {number}", lambda before=before: stream.made > before + 1, 60)
    until("the last pods", lambda: not stream.unfinished(), 120)
    assert stream.failed() == {}
    assert stream.made > UPGRADES
    tenant: Any = gpu_node.cluster.client.get(Pod, "tenant", namespace=namespace)
    assert tenant.status.containerStatuses[0].restartCount == 0
    assert metric(gpu_node, "milligpu_container_share_ratio", "tenant") == 0.1
    until("the kubelet to count all", lambda: gpu_node.allocatable(names.VGPU) == 1000, 30)


def test_a_successor_that_dies_before_its_turn_changes_nothing(gpu_node: GpuNode, namespace: str) -> None:
    stranger = gpu_node.new_agent()
    stranger.start()
    stranger.kill()
    start(gpu_node, namespace, "a", 300, 1024)
    assert gpu_node.agent.is_running


def registrations(gpu_node: GpuNode) -> int:
    """How often plugins have registered `nvidia.com/vgpu` with this kubelet, as it counts itself."""
    text = gpu_node.cluster.kubectl("get", "--raw", f"/api/v1/nodes/{gpu_node.node.name}/proxy/metrics")
    name = f'kubelet_device_plugin_registration_total{{resource_name="{names.VGPU}"}} '
    return sum(int(float(line.removeprefix(name))) for line in text.splitlines() if line.startswith(name))


def test_the_kubelet_notices_the_death_of_an_agent_that_took_over(gpu_node: GpuNode) -> None:
    before = registrations(gpu_node)
    gpu_node.upgrade()
    # The new agent registers, keeps the kubelet from dropping it with its predecessor, and registers once more.
    until("the last registration", lambda: registrations(gpu_node) >= before + 3, 60)
    gpu_node.agent.kill()
    until("the kubelet to notice", lambda: gpu_node.allocatable(names.VGPU) == 0, 60)
    gpu_node.agent = gpu_node.new_agent()
    gpu_node.start()
