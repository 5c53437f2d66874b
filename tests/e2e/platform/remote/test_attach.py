"""Pods with a share of a GPU server, by an annotation: nothing of it is in their images."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from deploy.images import CLIENT, CLIENT_FILES, image
from devcluster.api import read_json
from devcluster.cluster import Cluster
from devcluster.images import BASE, oci_archive, plain_layer
from devcluster.platform import Platform, account_kubeconfig
from devcluster.wait import until
from milligpu.manifests.rbac import GPU_SERVER
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.native import library
from milligpu.remote.connection import ServerConnection
from milligpu.remote.protocol import VERSION, AttachPod
from milligpu.remote.token_file import read_token_file
from milligpu.wire.grant import decode_grant
from tests.e2e.platform.pods import Json, apply, get, is_ready, manifest, wait_told
from tests.remote.conftest import GpuServer, wait_for

pytestmark = pytest.mark.e2e

PROGRAM = str(Path(sys.executable).with_name("milligpu"))
TRAIN = (Path(__file__).parents[3] / "remote/clients/tf_cnn_benchmarks.py").read_text()
HOLD = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print("more than the share:", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(5 << 30)), flush=True)
print("within the share:", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2 << 30)), flush=True)
time.sleep(600)
"""


def client_archive() -> Path:
    """The image milligpu-client of the libraries that this environment has, so that no wheel is built for it."""
    files = {path: library(source).read_bytes() for path, source in CLIENT_FILES.items()}
    path = Path(tempfile.mkdtemp(prefix="mgi-")) / "milligpu-client.tar"
    path.write_bytes(oci_archive(image(CLIENT), plain_layer(files)))
    return path


@pytest.fixture(scope="module")
def gpu_server(platform: Platform) -> Iterator[GpuServer]:
    """A GPU server beside the cluster, which the cluster knows."""
    node = platform.nodes[0].node
    node.import_image(client_archive(), image(CLIENT))
    kubeconfig = account_kubeconfig(platform.cluster, GPU_SERVER)
    options = ("--cluster", "--kubeconfig", str(kubeconfig), "--name", "gpu-1", "--address", "{address}")
    with closing(GpuServer(Path(tempfile.mkdtemp(prefix="mga-")), 1, *options, host=node.address)) as server:
        until(
            "the GpuServer to be ready",
            lambda: is_ready(gpu_server_object(platform.cluster)),
            30,
            last_state=(server.folder / "server.log").read_text,
            retry=(httpx2.HTTPStatusError,),
        )
        yield server
    platform.cluster.kubectl("delete", "gpuserver", "gpu-1")


def gpu_server_object(cluster: Cluster) -> Json:
    return read_json(cluster.client, f"{names.SERVERS_PATH}/gpu-1")


def remote_pod(name: str, milli: int, program: str, *arguments: str) -> Json:
    made = manifest(name, milli, image=BASE.reference, command=["python3", "-c", program, *arguments])
    made["metadata"]["annotations"] = {names.ATTACH: "remote"}
    made["spec"] |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    return made


def logs(cluster: Cluster, namespace: str, pod: str) -> str:
    return cluster.kubectl("logs", "-n", namespace, pod, check=False)  # it may not have started yet


def phase(cluster: Cluster, namespace: str, pod: str) -> str:
    return str(get(cluster, namespace, pod)["status"].get("phase"))


def test_a_pod_trains_on_the_gpu_of_a_server_and_its_image_knows_nothing_of_it(
    platform: Platform, gpu_server: GpuServer, namespace: str
) -> None:
    cluster = platform.cluster
    apply(cluster, namespace, remote_pod("train", 500, TRAIN, "--model", "small", "--num_gpus", "1"))
    until(
        "the training to end",
        lambda: phase(cluster, namespace, "train") == "Succeeded",
        60,
        last_state=lambda: cluster.last_state(namespace) + (gpu_server.folder / "server.log").read_text(),
    )
    lines = logs(cluster, namespace, "train").splitlines()
    # Half of the 8 GiB of the server's GPU; the node's own GPUs have 40.
    assert lines[1] == "Memory of GPU 0: 4096 MiB"
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-3
    pod = get(cluster, namespace, "train")
    [gpu] = decode_grant(pod["metadata"]["annotations"][names.GRANT]).gpus
    assert gpu in json.dumps(gpu_server_object(cluster)["status"]["inventory"])
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {names.REMOTE_VGPU: "500"}
    wait_for("the share to be free", lambda: not gpu_server.machine.sessions())


def test_a_remote_share_is_held_and_a_killed_pod_frees_it_for_the_next(
    platform: Platform, gpu_server: GpuServer, namespace: str
) -> None:
    cluster = platform.cluster
    apply(cluster, namespace, remote_pod("first", 600, HOLD))
    until("the pod to hold memory", lambda: "within the share: 0" in logs(cluster, namespace, "first"), 60)
    assert "more than the share: 2\n" in logs(cluster, namespace, "first")
    [session] = gpu_server.machine.sessions()
    assert f"{namespace}/first/main" in " ".join(session["command"])
    apply(cluster, namespace, remote_pod("second", 600, HOLD))
    why = wait_told(cluster, namespace, "second", "GPUUnavailable")
    assert "GpuServer/gpu-1" in why
    told = explain(cluster, namespace, "first")
    assert told.startswith("on GpuServer/gpu-1; ")
    assert "0.6" in told
    shown = json.loads(milligpu(cluster, "top", "--cluster", "--once", "-o", "json"))
    [share] = [each for each in shown["shares"] if each["pod"] == "first"]
    assert (share["node"], share["milli"]) == ("GpuServer/gpu-1", 600)
    cluster.kubectl("delete", "pod", "-n", namespace, "first", "--grace-period=0", "--force")
    until("the next pod to have it", lambda: "within the share: 0" in logs(cluster, namespace, "second"), 60)


def test_a_quota_counts_remote_shares(platform: Platform, gpu_server: GpuServer, namespace: str) -> None:
    del gpu_server
    quota = {"hard": {f"requests.{names.REMOTE_VGPU}": "500"}}
    made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "remote"}, "spec": quota}
    apply(platform.cluster, namespace, made)
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/remote"
    until("the quota to count", lambda: "used" in read_json(platform.cluster.client, path).get("status", {}), 30)
    with pytest.raises(Exception, match="exceeded quota"):
        apply(platform.cluster, namespace, remote_pod("large", 600, HOLD))


def test_a_token_opens_nothing_but_the_grant_of_its_own_pod(
    platform: Platform, gpu_server: GpuServer, namespace: str
) -> None:
    cluster = platform.cluster
    until("sessions of earlier pods to end", lambda: not gpu_server.machine.sessions(), 60)
    plain = manifest("plain", image=BASE.reference, command=["sleep", "600"])
    apply(cluster, namespace, plain)
    until("the pod to run", lambda: is_ready(get(cluster, namespace, "plain")), 60)
    bound = ("--bound-object-kind=Pod", "--bound-object-name=plain")
    tokens = {
        "a pod with a grant": ("--audience=milligpu", *bound),
        "audience milligpu": bound,
        "projected into the pod": ("--audience=milligpu",),
    }
    access = read_token_file(gpu_server.token)
    for why, options in tokens.items():
        token = cluster.kubectl("create", "token", "default", "-n", namespace, *options).strip()
        with closing(ServerConnection(gpu_server.address, access, plain=False)) as connection:
            connection.send(AttachPod(VERSION, token, "main"))
            with pytest.raises(BadRequest, match=why):
                connection.receive(20)
    assert not gpu_server.machine.sessions()


def milligpu(cluster: Cluster, *args: str) -> str:
    command = [PROGRAM, *args, "--kubeconfig", str(cluster.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def explain(cluster: Cluster, namespace: str, pod: str) -> str:
    return milligpu(cluster, "explain", pod, "-n", namespace)
