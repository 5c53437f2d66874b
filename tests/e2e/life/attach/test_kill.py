"""An agent that kills what goes around the limits."""

from collections.abc import Iterator

import pytest

from devcluster.platform import GpuNode
from devcluster.wait import until
from tests.e2e.platform.pods import HOLD, apply, get, manifest
from tests.e2e.scheduling import all_told

pytestmark = pytest.mark.e2e

STAY = HOLD + "\nprint('holds', flush=True)\ntime.sleep(600)"


@pytest.fixture
def strict_node(gpu_node: GpuNode) -> Iterator[GpuNode]:
    gpu_node.upgrade("--kill-outside", "--audit-every", "0.5")
    yield gpu_node
    gpu_node.upgrade()


def test_a_process_that_bypasses_its_limits_is_killed_and_honest_ones_are_not(
    strict_node: GpuNode, namespace: str
) -> None:
    cluster, once = strict_node.cluster, {"restartPolicy": "Never"}
    own = "/run/milligpu/driver/libcuda.so.1"
    around = manifest("around", 250, command=["python3", "-c", STAY, own, "100"], spec=once)
    honest = manifest("honest", 250, command=["python3", "-c", STAY, "libcuda.so.1", "100"], spec=once)
    apply(cluster, namespace, around, honest)

    def loaded() -> bool:
        # Another event says that the usage page is wrong.
        notes = all_told(cluster, namespace, "around", "OutsideShare")
        return any("it has loaded" in note and "libcuda.so.1" in note for note in notes)

    until("the event", loaded, 60)

    def ended() -> int | None:
        (state,) = get(cluster, namespace, "around")["status"]["containerStatuses"]
        return state["state"].get("terminated", {}).get("exitCode")

    assert until("the process to be killed", ended, 60) == 137
    assert get(cluster, namespace, "honest")["status"]["phase"] == "Running"
