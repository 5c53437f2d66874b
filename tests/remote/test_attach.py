"""A pod's programs on a GPU server: the client asks by the pod's token, and the server opens what the grant says.

The API server is only what a GPU server asks of it; tests/e2e/platform/remote has a real one.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from milligpu.model.attach import server_node
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Share
from milligpu.model.units import BYTES_PER_MIB, Mib, Milli
from milligpu.native import library
from milligpu.remote.token_file import read_token_file
from milligpu.wire.grant import encode_grant
from tests.remote.conftest import CLIENTS, GpuServer, wait_for

UID, POD = "11111111-2222-3333-4444-555555555555", "/api/v1/namespaces/team/pods/train"
SERVERS = "/apis/milligpu.dev/v1alpha1/gpuservers"


class ClusterApi:
    """What a GPU server asks of its cluster: token reviews, one pod, and the server's own object."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.reviews: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self, status: int, body: Any) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def _body(self) -> Any:
                return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

            def do_GET(self) -> None:
                found = api.objects.get(self.path)
                self._answer(404 if found is None else 200, found or {"message": "not found"})

            def do_POST(self) -> None:
                body = self._body()
                if self.path.endswith("/tokenreviews"):
                    self._answer(201, {"status": api.review(body["spec"]["token"])})
                else:
                    api.objects[f"{self.path}/{body['metadata']['name']}"] = body
                    self._answer(201, body)

            def do_PATCH(self) -> None:
                found = api.objects[self.path.removesuffix("/status")]
                found.update(self._body())
                self._answer(200, found)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def review(self, token: str) -> dict[str, Any]:
        self.reviews.append(token)
        extra = {
            f"authentication.kubernetes.io/pod-{key}": [value] for key, value in (("name", "train"), ("uid", UID))
        }
        user = {"username": "system:serviceaccount:team:default", "extra": extra}
        return {"authenticated": token == "good.pod.token", "audiences": ["milligpu"], "user": user}

    def kubeconfig(self, path: Path) -> Path:
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}
        user = {"name": "u", "user": {"token": "server"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        parts = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "x"}
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **parts}))
        return path

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def api() -> Iterator[ClusterApi]:
    made = ClusterApi()
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster_server(api: ClusterApi) -> Iterator[GpuServer]:
    folder = Path(tempfile.mkdtemp(prefix="mgp-"))
    kubeconfig = str(api.kubeconfig(folder / "kubeconfig"))
    options = ("--cluster", "--kubeconfig", kubeconfig, "--name", "gpu-1", "--address", "{address}")
    server = GpuServer(folder, 1, *options)
    wait_for("its GpuServer", lambda: api.objects.get(f"{SERVERS}/gpu-1", {}).get("status"))
    yield server
    server.close()


@pytest.fixture
def pod(api: ClusterApi, cluster_server: GpuServer) -> Iterator[dict[str, Any]]:
    """A pod with a grant of half of the server's GPU."""
    gpu = api.objects[f"{SERVERS}/gpu-1"]["status"]["inventory"]["gpus"][0]["uuid"]
    share = GpuShare(gpu, Share(Milli(500), Mib(2048), Milli(500)))
    grant = encode_grant(Grant(UID, server_node("gpu-1"), {"main": (share,)}))
    meta = {"name": "train", "namespace": "team", "uid": UID, "annotations": {"milligpu.dev/grant": grant}}
    api.objects[POD] = {"metadata": meta, "spec": {}, "status": {"phase": "Running"}}
    yield api.objects[POD]
    cluster_server.end_clients()


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(cluster_server: GpuServer, pod: dict[str, Any], tmp_path: Path) -> Iterator[Start]:
    """Start a program as in a pod: with the files that the kubelet mounts."""
    del pod
    started: list[subprocess.Popen[str]] = []

    def begin(mib: int, token: str = "good.pod.token", container: str = "main") -> "subprocess.Popen[str]":
        (tmp_path / "token").write_text(token)
        (tmp_path / "server").write_text(
            f"{cluster_server.address}\n{read_token_file(cluster_server.token).authority}"
        )
        env = {**os.environ, "LD_LIBRARY_PATH": str(library("remote/libcuda.so.1").parent)}
        env |= {"MILLIGPU_REMOTE_ATTACH": str(tmp_path), "MILLIGPU_REMOTE_CONTAINER": container}
        process = subprocess.Popen(
            [sys.executable, CLIENTS / "hold.py", str(mib)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def first_line(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def why_refused(process: "subprocess.Popen[str]") -> str:
    output, errors = process.communicate(timeout=60)
    assert json.loads(output.splitlines()[0])["status"]
    return errors


def test_a_pods_programs_share_the_session_that_its_grant_names(
    cluster_server: GpuServer, api: ClusterApi, start: Start
) -> None:
    first, second = start(512), start(1024)
    assert [first_line(each).get("total") for each in (first, second)] == [2048 * BYTES_PER_MIB] * 2
    [session] = cluster_server.machine.sessions()
    assert "team/train/main" in " ".join(session["command"])
    # Two and a half GiB of two.
    third = start(1024)
    assert first_line(third)["status"] == 2
    for process in (first, second, third):
        process.send_signal(signal.SIGKILL)
    wait_for("the share to be free", lambda: not cluster_server.machine.sessions())
    assert set(api.reviews) == {"good.pod.token"}


def test_a_session_ends_when_its_pod_is_gone(cluster_server: GpuServer, pod: dict[str, Any], start: Start) -> None:
    assert first_line(start(64))["status"] == 0
    pod["status"]["phase"] = "Failed"
    wait_for("the share to be free", lambda: not cluster_server.machine.sessions())
    assert "its pod is gone" in (cluster_server.folder / "server.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"token": "bad.pod.token"}, "audience milligpu"),
        ({"container": "other"}, "a container with a share: main"),
    ],
)
def test_what_the_grant_does_not_say_is_refused(
    cluster_server: GpuServer, start: Start, arguments: dict[str, str], why: str
) -> None:
    assert why in why_refused(start(64, **arguments))
    assert not cluster_server.machine.sessions()


def test_a_grant_of_another_server_is_refused(pod: dict[str, Any], start: Start) -> None:
    notes = pod["metadata"]["annotations"]
    notes["milligpu.dev/grant"] = notes["milligpu.dev/grant"].replace("GpuServer/gpu-1", "GpuServer/gpu-2")
    assert "whose grant names the GPU server gpu-1" in why_refused(start(64))


def test_what_others_hold_of_a_gpu_is_reserved_in_the_report(cluster_server: GpuServer, api: ClusterApi) -> None:
    held = cluster_server.client("-p", "0.25", "-m", "1Gi", "--", "sleep", "60")
    gpu = "status", "inventory", "gpus", 0

    def reserved() -> int:
        found = api.objects[f"{SERVERS}/gpu-1"]
        for key in gpu:
            found = found[key]
        return int(found.get("reserved", 0))

    wait_for("the part to be reserved", lambda: reserved() == 250)
    held.kill()
    cluster_server.end_clients()
    wait_for("the part to be free", lambda: reserved() == 0)
