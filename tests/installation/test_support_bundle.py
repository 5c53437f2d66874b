"""What a support bundle has, and what it must never have."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milligpu.cli.main import run
from milligpu.installation.redact import REDACTED, Redactor
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib
from milligpu.wire.inventory import encode_inventory
from tests.cli.api_server import ApiServer, serve

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"
RANDOM = "q9XvB2mK7pLw4ZtR8sNc1YdF6hJg3VaQ"
PLANTED = [
    "hunter2",
    TOKEN,
    RANDOM,
    "alice",
    "bob@example.com",
    "project-apollo",
    "s3cr3t-volume",
    "AKIAIOSFODNN7EXAMPLE",
    "MIIEvQIBADANBg",
    "rocket-design",
]


def users_pod() -> dict[str, Any]:
    container = {
        "name": "rocket-design",
        "image": "registry.example.com/alice/train:1",
        "command": ["train", "--password=hunter2"],
        "args": ["--token", TOKEN],
        "env": [{"name": "API_KEY", "value": RANDOM}, {"name": "GREETING", "value": "hello alice"}],
        "resources": {"limits": {names.VGPU: "500"}},
    }
    meta = {
        "name": "alice-training-0",
        "namespace": "project-apollo",
        "uid": "u1",
        "labels": {"user": "alice", "milligpu.dev/exclusion": "batch"},
        "annotations": {
            "contact": "bob@example.com",
            "kubectl.kubernetes.io/last-applied-configuration": "hunter2",
            names.GRANT: '{"containers":{"rocket-design":{}}}',
        },
        "ownerReferences": [{"kind": "Job", "name": "alice-training"}],
        "managedFields": [{"manager": "alice"}],
    }
    spec = {"containers": [container], "volumes": [{"secret": {"secretName": "s3cr3t-volume"}}], "nodeName": "n1"}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def own_pod() -> dict[str, Any]:
    environment = [{"name": "PROXY", "value": "http://alice:hunter2@proxy"}]
    return {
        "metadata": {"name": "milligpu-agent-x", "namespace": "milligpu"},
        "spec": {"containers": [{"name": "agent", "image": "i", "env": environment}]},
        "status": {},
    }


LOG = f"""\
Started serving node=n1 gpus=2
Could not write event pod=project-apollo/alice-training-0 error=Authorization: Bearer {RANDOM}
-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBg
-----END PRIVATE KEY-----
session user=alice aws=AKIAIOSFODNN7EXAMPLE from bob@example.com
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ApiServer, Path]]:
    with serve(tmp_path) as (api, kubeconfig):
        inventory = encode_inventory([Gpu("GPU-1", "A100", Mib(40960))])
        node = {"name": "n1", "annotations": {names.INVENTORY: inventory, "owner": "alice"}}
        info = {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.0"}
        api.put_list("/api/v1/nodes", {"metadata": node, "status": {"nodeInfo": info, "allocatable": {}}})
        api.put_list("/api/v1/pods", users_pod(), own_pod())
        api.put_list("/api/v1/namespaces/milligpu/pods", own_pod())
        api.put_list(
            "/apis/events.k8s.io/v1/events",
            {
                "metadata": {"namespace": "project-apollo"},
                "reportingController": "milligpu.dev/agent",
                "reason": "Resized",
                "note": "project-apollo/alice-training-0 has 0.5",
                "regarding": {"kind": "Pod", "name": "alice-training-0", "namespace": "project-apollo"},
            },
        )
        api.objects["/version"] = {"gitVersion": "v1.36.3"}
        api.objects["/api/v1/namespaces/milligpu/pods/milligpu-agent-x/log"] = LOG
        yield api, kubeconfig


def bundle(kubeconfig: Path, file: Path) -> dict[str, str]:
    assert run(["support-bundle", "--kubeconfig", str(kubeconfig), str(file)]) == 0
    with tarfile.open(file) as archive:
        streams = {member.name: archive.extractfile(member) for member in archive}
        return {
            name.removeprefix("milligpu-support/"): each.read().decode() for name, each in streams.items() if each
        }


def test_nothing_that_was_planted_is_in_a_bundle(cluster: tuple[ApiServer, Path], tmp_path: Path) -> None:
    files = bundle(cluster[1], tmp_path / "b.tar.gz")
    leaks = {(name, secret) for name, text in files.items() for secret in PLANTED if secret in text}
    assert leaks == set()
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o077 == 0


def test_a_bundle_has_what_somebody_who_helps_needs(cluster: tuple[ApiServer, Path], tmp_path: Path) -> None:
    files = bundle(cluster[1], tmp_path / "b.tar.gz")
    [pod] = json.loads(files["pods.json"])
    assert pod["metadata"]["name"] == "pod-1"
    assert pod["metadata"]["namespace"] == "namespace-1"
    assert pod["metadata"]["annotations"][names.GRANT] == '{"containers":{"container-1":{}}}'
    assert pod["spec"]["containers"] == [{"name": "container-1", "resources": {"limits": {names.VGPU: "500"}}}]
    [node] = json.loads(files["nodes.json"])
    assert "A100" in node["metadata"]["annotations"][names.INVENTORY]
    assert json.loads(files["events.json"])[0]["note"] == "namespace-1/pod-1 has 0.5"
    assert "Started serving node=n1 gpus=2" in files["logs/milligpu-agent-x/agent.log"]
    assert "pod=namespace-1/pod-1" in files["logs/milligpu-agent-x/agent.log"]
    assert json.loads(files["versions.json"])["kubernetes"] == "v1.36.3"
    assert {"checks.json", "own-pods.json"} <= files.keys()
    assert "daemonsets" in files["errors.txt"], "what cannot be read is said, and the rest is there"


@pytest.mark.parametrize(
    "text",
    [
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "GPU-c6eb0813-1111-2222-3333-444455556666",
        "0/40 nodes: 31 InsufficientGPUCore (best: n7/GPU2 400 of 500)",
        "milligpu.dev/inventory",
    ],
)
def test_what_helps_is_not_taken_for_a_secret(text: str) -> None:
    assert Redactor("milligpu").text(text) == text


def test_a_field_that_nobody_listed_is_left_out() -> None:
    pod = users_pod()
    pod["spec"]["newFieldOfKubernetes"] = "alice"
    assert "newFieldOfKubernetes" not in Redactor("milligpu").keep_listed(pod, "Pod")["spec"]
    assert REDACTED in Redactor("milligpu").text("password: hunter2")
