"""Our device plugin on a real kubelet: slots are counted, and a container starts when its CDI file is there."""

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from lightkube.resources.core_v1 import Pod

from devcluster.cluster import Cluster
from devcluster.pods import pod, wait_for_phase, why_unscheduled
from devcluster.wait import until
from milligpu.kubelet.device_plugin import DevicePlugin
from milligpu.kubelet.held_devices import HeldDevices
from milligpu.kubelet.pod_resources import PodResources
from milligpu.model.request import PodRef

pytestmark = pytest.mark.e2e

RESOURCE = "example.com/slot"
CDI_KIND = "milligpu.dev/test"


class Plugin:
    """A device plugin in a thread of its own, which remembers what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.allocated: dict[str, tuple[str, ...]] = {}
        self._loop = asyncio.new_event_loop()
        self._plugin = DevicePlugin(folder, RESOURCE, self._allocate)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    async def _allocate(self, slots: Sequence[str]) -> str:
        name = uuid.uuid4().hex
        self.allocated[name] = tuple(slots)
        return f"{CDI_KIND}={name}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._plugin.run())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def offer(self, count: int) -> None:
        self._loop.call_soon_threadsafe(self._plugin.offer, [f"slot-{number}" for number in range(count)])

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def plugin(real_cluster: Cluster) -> Iterator[Plugin]:
    plugin = Plugin(real_cluster.nodes[0].device_plugins_dir)
    plugin.offer(5)
    yield plugin
    plugin.stop()


def allocatable(cluster: Cluster) -> str:
    path = f"{{.status.allocatable.{RESOURCE.replace('.', chr(92) + '.')}}}"
    return cluster.kubectl("get", "node", cluster.nodes[0].name, f"--output=jsonpath={path}")


def wait_for_slots(cluster: Cluster, count: int) -> None:
    until(f"the node to have {count} slots", lambda: allocatable(cluster) == str(count), 30)


def held(cluster: Cluster) -> list[HeldDevices]:
    async def ask() -> list[HeldDevices]:
        kubelet = PodResources(cluster.nodes[0].pod_resources_socket)
        try:
            return [each for each in await kubelet.held() if each.resource == RESOURCE]
        finally:
            await kubelet.close()

    return asyncio.run(ask())


def waiting_reason(cluster: Cluster, namespace: str, name: str) -> str | None:
    status = cluster.client.get(Pod, name, namespace=namespace).status
    states = [each.state for each in (status.containerStatuses or [])] if status else []
    return states[0].waiting.reason if states and states[0] and states[0].waiting else None


def write_cdi(cluster: Cluster, name: str, variable: str) -> Path:
    file = cluster.nodes[0].cdi_dir / f"milligpu-test-{name}.json"
    edits = {"env": [variable], "deviceNodes": [{"path": "/dev/granted", "type": "c", "major": 1, "minor": 5}]}
    fresh = file.with_suffix(".tmp")
    fresh.write_text(
        json.dumps({"cdiVersion": "0.6.0", "kind": CDI_KIND, "devices": [{"name": name, "containerEdits": edits}]})
    )
    return fresh.rename(file)


def test_the_kubelet_counts_slots_and_follows_changes(real_cluster: Cluster, plugin: Plugin) -> None:
    wait_for_slots(real_cluster, 5)
    plugin.offer(3)
    wait_for_slots(real_cluster, 3)


def test_a_container_starts_when_its_cdi_file_is_written_and_not_before(
    real_cluster: Cluster, plugin: Plugin, namespace: str
) -> None:
    wait_for_slots(real_cluster, 5)
    command = ["bash", "-c", "echo $MILLIGPU_TEST; test -c /dev/granted && echo device"]
    real_cluster.client.create(pod("user", command, resources={RESOURCE: "3"}), namespace=namespace)

    until(
        "the kubelet to try and fail",
        lambda: waiting_reason(real_cluster, namespace, "user") == "CreateContainerError",
        30,
        last_state=lambda: real_cluster.last_state(namespace),
    )
    [(name, slots)] = plugin.allocated.items()
    assert len(slots) == 3
    [holder] = held(real_cluster)
    assert (holder.pod, holder.container) == (PodRef(namespace, "user"), "main")
    assert holder.slots == set(slots)

    file = write_cdi(real_cluster, name, "MILLIGPU_TEST=granted")
    wait_for_phase(real_cluster, namespace, "user", "Succeeded")
    log = "".join(real_cluster.client.log("user", namespace=namespace))
    assert log.split() == ["granted", "device"]
    file.unlink()


def test_more_slots_than_there_are_keep_a_pod_waiting(
    real_cluster: Cluster, plugin: Plugin, namespace: str
) -> None:
    wait_for_slots(real_cluster, 5)
    real_cluster.client.create(pod("greedy", resources={RESOURCE: "6"}), namespace=namespace)

    def reason() -> str | None:
        return why_unscheduled(real_cluster.client.get(Pod, "greedy", namespace=namespace)) or None

    assert f"Insufficient {RESOURCE}" in until("the scheduler's word", reason, 20)
    assert plugin.allocated == {}


def test_the_agent_registers_again_with_a_restarted_kubelet(
    real_cluster: Cluster, plugin: Plugin, namespace: str
) -> None:
    wait_for_slots(real_cluster, 5)
    kubelet = real_cluster.nodes[0].kubelet
    kubelet.kill()
    kubelet.start()
    plugin.offer(4)  # arrives at the new kubelet only through a new registration
    wait_for_slots(real_cluster, 4)
    real_cluster.client.create(pod("after", ["true"], resources={RESOURCE: "1"}), namespace=namespace)
    [name] = until("the new kubelet to ask us", lambda: list(plugin.allocated) or None, 30)
    file = write_cdi(real_cluster, name, "X=1")
    wait_for_phase(real_cluster, namespace, "after", "Succeeded")
    file.unlink()
