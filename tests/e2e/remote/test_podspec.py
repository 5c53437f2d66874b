"""The Bitfusion guide's podspec on a real Kubernetes that knows of no GPU: its half is on a GPU server."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.pods import wait_for_phase
from tests.e2e.remote.client_image import client_image
from tests.remote.conftest import GpuServer, wait_for

pytestmark = pytest.mark.e2e

SEEDS = Path(__file__).parents[3] / "examples/seeds"


@pytest.fixture(scope="module")
def gpu_server(real_cluster: Cluster) -> Iterator[GpuServer]:
    """A GPU server beside the cluster, at an address that pods reach; the image with the client is on the node."""
    [node] = real_cluster.nodes
    image, archive = client_image()
    node.import_image(archive, image)
    with closing(GpuServer(Path(tempfile.mkdtemp(prefix="mgk-")), 1, host=node.address)) as server:
        yield server


@pytest.fixture
def with_token(real_cluster: Cluster, gpu_server: GpuServer) -> Iterator[str]:
    """A namespace with the token in a Secret, as the example's comment says."""
    with new_namespace(real_cluster) as namespace:
        token = f"--from-file=token.json={gpu_server.token}"
        real_cluster.kubectl("create", "secret", "generic", "bitfusion", "-n", namespace, token)
        yield namespace


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((SEEDS / name).read_text())


def test_the_podspec_for_a_gpu_server_has_the_guides_command() -> None:
    local, remote = load("bitfusion.yaml")["spec"], load("bitfusion-remote.yaml")["spec"]
    assert remote["containers"][0]["args"] == local["containers"][0]["args"]
    assert [each["name"] for each in remote["volumes"]] == [each["name"] for each in local["volumes"]]
    assert "resources" not in remote["containers"][0]


def test_the_guides_podspec_trains_on_a_gpu_server(
    real_cluster: Cluster, gpu_server: GpuServer, with_token: str
) -> None:
    node = json.loads(real_cluster.kubectl("get", "node", real_cluster.nodes[0].name, "-o", "json"))
    assert not [name for name in node["status"]["capacity"] if "gpu" in name]
    real_cluster.kubectl("apply", "-n", with_token, "-f", str(SEEDS / "bitfusion-remote.yaml"))
    wait_for_phase(real_cluster, with_token, "bitfusion-benchmark", "Succeeded")
    lines = "".join(real_cluster.client.log("bitfusion-benchmark", namespace=with_token)).splitlines()
    assert lines[0] == "Model: inception3  batch size: 32  GPUs: 1 of 1"
    # Half of the 8 GiB of the server's GPU.
    assert lines[1] == "Memory of GPU 0: 4096 MiB"
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-3
    wait_for("the share to be free", lambda: not gpu_server.machine.sessions())


def test_the_guides_health_job_reports_every_server_and_the_pod(
    real_cluster: Cluster, gpu_server: GpuServer, with_token: str
) -> None:
    real_cluster.kubectl("apply", "-n", with_token, "-f", str(SEEDS / "bitfusion-health.yaml"))
    real_cluster.kubectl(
        "wait", "-n", with_token, "--for=condition=Complete", "--timeout=120s", "job/bitfusion-health"
    )
    report = real_cluster.kubectl("logs", "-n", with_token, "job/bitfusion-health")
    assert report.startswith(f"Health report for server: {gpu_server.address}\n=====\n")
    assert "[PASS   ] Check GPU Xid errors" in report
    assert "Health report for localhost" in report
    assert report.count("FATAL: 0") == 2


def test_a_pod_that_is_killed_frees_its_share(
    real_cluster: Cluster, gpu_server: GpuServer, with_token: str
) -> None:
    manifest = load("bitfusion-remote.yaml")
    manifest["spec"]["containers"][0]["args"] = ["/bin/bash", "-c", "bitfusion run -n 1 -p 0.5 -- sleep infinity"]
    real_cluster.kubectl("apply", "-n", with_token, "-f", "-", stdin=yaml.safe_dump(manifest))
    wait_for("the share to be held", lambda: len(gpu_server.machine.sessions()) == 1)
    real_cluster.kubectl("delete", "pod", "-n", with_token, "bitfusion-benchmark", "--grace-period=0", "--force")
    wait_for("the share to be free", lambda: not gpu_server.machine.sessions())
