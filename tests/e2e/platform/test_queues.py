"""Two teams share one GPU of a real node: what is idle is lent, and comes back to the containers of its owner."""

from collections.abc import Iterator

import pytest

from devcluster.api import read_json
from devcluster.platform import Platform
from devcluster.wait import until
from milligpu.model import names
from milligpu.wire.inventory import decode_inventory
from tests.e2e.platform.pods import DEADLINE_S, Json, apply, get, look, manifest, pods, wait_running, wait_told

pytestmark = pytest.mark.e2e

TEAMS = ("real-team-a", "real-team-b")


@pytest.fixture
def teams(platform: Platform) -> Iterator[None]:
    spec = {"guarantee": {"milli": 500, "memory": "20Gi"}}
    for name in TEAMS:
        queue = {"apiVersion": names.GROUP_VERSION, "kind": "GpuQueue", "metadata": {"name": name}, "spec": spec}
        apply(platform.cluster, "default", queue)
        platform.cluster.kubectl("wait", "--for=condition=Ready", "--timeout=60s", f"gpuqueue/{name}")
    yield
    platform.cluster.kubectl("delete", "gpuqueue", *TEAMS)


def empty_gpu(platform: Platform) -> str:
    """The last GPU of the first node; other tests leave nothing behind, and shares go to the first ones."""
    node = read_json(platform.cluster.client, f"/api/v1/nodes/{platform.nodes[0].node.name}")
    return decode_inventory(node["metadata"]["annotations"][names.INVENTORY])[-1].uuid


def half(name: str, queue: str, gpu: str) -> Json:
    found = manifest(name, 500)
    found["metadata"] |= {"labels": {names.QUEUE: queue}, "annotations": {names.REQUIRE: f"uuid={gpu}"}}
    return found


@pytest.mark.usefixtures("teams")
def test_two_teams_share_one_gpu_of_a_real_node(platform: Platform, namespace: str) -> None:
    cluster, gpu = platform.cluster, empty_gpu(platform)
    for count, name in enumerate(("old", "young"), 1):
        apply(cluster, namespace, half(name, TEAMS[0], gpu))
        wait_running(cluster, namespace, count)
    apply(cluster, namespace, half("third", TEAMS[0], gpu))
    assert wait_told(cluster, namespace, "third", "Queued").startswith(f"1st of 1 in {TEAMS[0]}; ")
    apply(cluster, namespace, half("owner", TEAMS[1], gpu))
    assert f"queue {TEAMS[1]} takes back" in wait_told(cluster, namespace, "young", "Preempted")

    def runs() -> bool:
        found = {each["metadata"]["name"]: each["status"]["phase"] for each in pods(cluster, namespace)}
        return found == {"old": "Running", "owner": "Running", "third": "Pending"}

    until("the owner to run", runs, DEADLINE_S, last_state=lambda: cluster.last_state(namespace))
    inside = look(cluster, namespace, "owner")
    assert inside.page is not None
    assert [each.milli for each in inside.page.gpus] == [500]
    assert [each["name"] for each in get(cluster, namespace, "third")["spec"]["schedulingGates"]] == [names.QUEUE]
    cluster.kubectl("delete", "pod", "-n", namespace, "old", "--wait=false")
    until("the third", lambda: get(cluster, namespace, "third")["status"]["phase"] == "Running", DEADLINE_S)


def compute(name: str, milli: int, gpu: str, priority: str = "", **notes: str) -> Json:
    """A pod with little memory, which runs on this GPU."""
    found = manifest(name, milli)
    found["spec"]["containers"][0]["resources"]["limits"][names.VGPU_MEMORY] = 1024
    found["metadata"]["annotations"] = {names.REQUIRE: f"uuid={gpu}", **notes}
    if priority:
        found["spec"]["priorityClassName"] = priority
    return found


def share_of(platform: Platform, namespace: str, name: str) -> int | None:
    """What the limits page in a container says about its compute."""
    page = look(platform.cluster, namespace, name).page
    return None if page is None else page.gpus[0].milli


def test_a_higher_priority_wins_a_full_gpu_by_shrinking_one_pod_and_evicting_another(
    platform: Platform, namespace: str
) -> None:
    cluster, gpu, important = platform.cluster, empty_gpu(platform), f"{namespace}-important"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": important}}
    apply(cluster, "default", {**kind, "value": 1000})
    apply(cluster, namespace, compute("elastic", 600, gpu, **{"milligpu.dev/floor": "300"}))
    wait_running(cluster, namespace, 1)
    apply(cluster, namespace, compute("rigid", 400, gpu))
    wait_running(cluster, namespace, 2)
    started = get(cluster, namespace, "elastic")["status"]["containerStatuses"][0]["containerID"]
    apply(cluster, namespace, compute("high", 650, gpu, important))
    assert "has priority 1000" in wait_told(cluster, namespace, "elastic", "Shrunk")
    assert "has priority 1000" in wait_told(cluster, namespace, "rigid", "Preempted")

    def runs() -> bool:
        found = {each["metadata"]["name"]: each["status"]["phase"] for each in pods(cluster, namespace)}
        return found == {"elastic": "Running", "high": "Running"}

    until("the high priority to run", runs, DEADLINE_S, last_state=lambda: cluster.last_state(namespace))
    assert share_of(platform, namespace, "high") == 650
    until("the smaller share", lambda: share_of(platform, namespace, "elastic") == 350, DEADLINE_S)
    cluster.kubectl("delete", "pod", "-n", namespace, "high", "--wait=false")
    until("the whole share again", lambda: share_of(platform, namespace, "elastic") == 600, DEADLINE_S)
    now = get(cluster, namespace, "elastic")["status"]["containerStatuses"][0]
    assert (now["containerID"], now["restartCount"]) == (started, 0)
    cluster.kubectl("delete", "priorityclass", important)
