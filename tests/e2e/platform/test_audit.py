"""Who uses a card without a share of it, or around its limits, is found on the real node."""

import httpx2
import pytest

from devcluster.platform import SOFTGPU_FOLDER, Platform
from devcluster.wait import until
from milligpu.native import library
from tests.e2e.platform.pods import HOLD, Json, apply, manifest, wait_running, wait_told
from tests.e2e.scheduling import told

pytestmark = pytest.mark.e2e


def holding(driver: str, mib: int) -> list[str]:
    return ["python3", "-c", HOLD + "time.sleep(600)", driver, str(mib)]


def found(platform: Platform, kind: str) -> int:
    """How often the agent of the node counted it."""
    text = httpx2.get(f"{platform.nodes[0].url}/metrics", timeout=5).text
    lines = [line for line in text.splitlines() if line.startswith("milligpu_gpu_violations_total{")]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if f'kind="{kind}"' in line)


def with_paths_of_the_node(name: str) -> Json:
    """What a pod can do that may mount paths of the node: take the cards' own sockets, or devices, and a driver."""
    driver = library("softgpu/libcuda.so.1").parent
    volumes = {"cards": str(SOFTGPU_FOLDER), "driver": str(driver)}
    return manifest(
        name,
        command=holding("/driver/libcuda.so.1", 100),
        env=[{"name": "MILLIGPU_SOFTGPU", "value": "/cards"}],
        volumeMounts=[{"name": key, "mountPath": f"/{key}"} for key in volumes],
        spec={"volumes": [{"name": key, "hostPath": {"path": path}} for key, path in volumes.items()]},
    )


def test_a_pod_that_reaches_a_gpu_through_host_paths_is_an_unknown_process(
    platform: Platform, namespace: str
) -> None:
    before = found(platform, "unknown-process")
    apply(platform.cluster, namespace, with_paths_of_the_node("stranger"))
    note = wait_told(platform.cluster, namespace, "stranger", "OutsideShare")
    assert note.startswith("unknown-process on GPU ")
    assert "belongs to no tenant" in note
    assert found(platform, "unknown-process") > before


def test_a_container_that_opens_the_drivers_own_library_is_found_and_an_honest_one_is_not(
    platform: Platform, namespace: str
) -> None:
    around = manifest("around", 250, command=holding("/run/milligpu/driver/libcuda.so.1", 12000))
    honest = manifest("honest", 250, command=holding("libcuda.so.1", 9000))
    apply(platform.cluster, namespace, around, honest)
    wait_running(platform.cluster, namespace, 2)
    wait_told(platform.cluster, namespace, "around", "OutsideShare")
    for kind in ("bypass", "over-memory"):
        until(kind, lambda kind=kind: found(platform, kind) > 0, 60)
    assert told(platform.cluster, namespace, "honest", "OutsideShare") == ""
