"""The example of half a GPU, more often than there are halves."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.platform import Platform
from devcluster.wait import until
from tests.e2e.platform.pods import GPUS, Json, apply, get, is_ready, look, manifest, pods, wait_running

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[3] / "examples"
PROGRAM = str(Path(sys.executable).with_name("milligpu"))


@pytest.fixture
def elsewhere(platform: Platform) -> Iterator[str]:
    """A second namespace."""
    with new_namespace(platform.cluster) as name:
        yield name


def test_two_halves_of_a_gpu_run_together_and_a_third_pod_gets_an_event_with_the_reason(
    platform: Platform, namespace: str, elsewhere: str
) -> None:
    cluster = platform.cluster
    # All GPUs but two.
    apply(cluster, elsewhere, manifest("rest", resources={"limits": {"nvidia.com/gpu": GPUS - 2}}))
    wait_running(cluster, elsewhere, 1)
    job = yaml.safe_load((EXAMPLES / "half-gpu.yaml").read_text())
    main = job["spec"]["template"]["spec"]["containers"][0]
    main["args"] = [main["args"][0] + "\nimport time\ntime.sleep(600)"]
    job["spec"] |= {"parallelism": 5, "completions": 5}
    job["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": platform.nodes[0].node.name}
    apply(cluster, namespace, job)

    def four() -> list[Json] | None:
        found = pods(cluster, namespace)
        return found if sum(map(is_ready, found)) == 4 and len(found) == 5 else None

    found = until("four of five", four, 90, last_state=lambda: cluster.last_state(namespace))
    waiting = next(each["metadata"]["name"] for each in found if not is_ready(each))
    why = explain(cluster, namespace, waiting)
    assert "InsufficientGPUCore" in why
    assert "0 of 0.5 GPU" in why
    running = next(each["metadata"]["name"] for each in found if is_ready(each))
    assert "0.5 with 20Gi" in explain(cluster, namespace, running)
    assert look(cluster, namespace, running, "train").gpus == (20480,)
    cluster.kubectl("delete", "pod", "-n", namespace, running, "--grace-period=0", "--force")
    until("its place to be taken", lambda: is_ready(get(cluster, namespace, waiting)), 90)


def explain(cluster: Cluster, namespace: str, pod: str) -> str:
    command = [PROGRAM, "explain", pod, "-n", namespace, "--kubeconfig", str(cluster.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
