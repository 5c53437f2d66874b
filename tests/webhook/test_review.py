"""The webhook as a function of bytes, its certificates, and its configuration."""

import base64
import copy
import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from milligpu import dialects
from milligpu.dialects.normal import NormalForm, normalize
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.model.gpu_class import GpuClasses, read_class
from milligpu.model.units import Mib
from milligpu.webhook.certificates import AUTHORITIES_MAX, issue_certificate, trust_bundle
from milligpu.webhook.review import PodReviewer, UnknownName
from tests.dialects.golden import Case, cases
from tests.dialects.test_normal import apply

FORM = NormalForm(largest_gpu=Mib(16384))
CLASSES = GpuClasses([read_class("gold", "memory>=16Gi", "silver"), read_class("silver", "ecc", "")])
WEBHOOK = PodReviewer(lambda: FORM, lambda: CLASSES)
CASES = list(cases())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def review(found: dict[str, Any], kind: str = "Pod") -> dict[str, Any]:
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "namespace": "n",
        "object": found,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer = json.loads(WEBHOOK.review(json.dumps(body).encode()))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert answer["response"]["uid"] == "u-1"
    return answer["response"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}: {case.name}")
def test_every_manifest_is_patched_to_the_same_request_or_refused_with_its_field(case: Case) -> None:
    answer = review(case.pod)
    if case.refused is not None:
        assert not answer["allowed"]
        assert case.refused["field"] in answer["status"]["message"]
        assert case.refused["want"] in answer["status"]["message"]
        assert answer["status"]["code"] == 422
        return
    assert answer["allowed"]
    operations: list[Any] = json.loads(base64.b64decode(answer["patch"])) if "patch" in answer else []
    after = apply(case.pod, operations)
    expected = normalize(case.pod, FORM)
    if dialects.read_pod(case.pod).group is not None:
        expected["spec"]["schedulingGates"] = [{"name": names.QUEUE}]
    assert after == expected
    assert dialects.read_pod(after) == dialects.read_pod(case.pod)
    assert "patch" not in review(after)


def template(case: Case) -> dict[str, Any]:
    return {"metadata": {"name": "d"}, "spec": {"template": {key: case.pod[key] for key in ("metadata", "spec")}}}


@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: f"{case.file}: {case.name}")
def test_objects_that_create_invalid_pods_are_refused_and_changed_only_for_a_class(case: Case) -> None:
    answer = review(template(case), "Deployment")
    assert answer["allowed"] == (case.refused is None)
    assert ("patch" in answer) == (case.name == "a class as a resource")


@pytest.mark.parametrize("kind", ["Pod", "Deployment"])
def test_a_class_that_does_not_exist_is_refused_with_those_that_do(kind: str) -> None:
    pod = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"gpu-x": 1}}}]},
    }
    found = pod if kind == "Pod" else {"metadata": {"name": "d"}, "spec": {"template": pod}}
    answer = review(found, kind)
    assert not answer["allowed"]
    assert answer["status"]["message"] == (
        "milligpu.dev/class: invalid value 'x': must be the name of a GpuClass; existing classes: gold, silver; "
        "list them with: milligpu class list"
    )


def test_a_class_that_is_not_known_yet_is_looked_up_before_it_is_refused() -> None:
    spec = {"containers": [{"name": "c", "resources": {"limits": {"gpu-x": 1}}}]}
    request = {"uid": "u", "kind": {"kind": "Pod"}, "object": {"metadata": {"name": "p"}, "spec": spec}}
    with pytest.raises(UnknownName):
        WEBHOOK.review(json.dumps({"request": request}).encode(), final=False)


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("bronze", {"requirements": "memory>=20Ti"}, "memory: invalid value '20Ti': must be a size"),
        ("bronze", {"requirements": "ecccc"}, "spec.requirements: invalid value 'ecccc': must be one of memory"),
        ("bronze", {}, "spec.requirements: required"),
        ("silver", {"requirements": "ecc", "fallback": "gold"}, "lead back to silver: silver -> gold -> silver"),
        ("x" * 60, {"requirements": "ecc"}, "metadata.name: invalid value"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(name: str, spec: dict[str, str], message: str) -> None:
    answer = review({"metadata": {"name": name}, "spec": spec}, "GpuClass")
    assert not answer["allowed"]
    assert message in answer["status"]["message"]


def test_a_fallback_may_be_created_later() -> None:
    found = {"metadata": {"name": "bronze"}, "spec": {"requirements": "ecc", "fallback": "tin"}}
    assert review(found, "GpuClass")["warnings"] == ["spec.fallback: class tin does not exist yet"]
    found = {"metadata": {"name": "bronze"}, "spec": {"requirements": "ecc", "fallback": "gold"}}
    assert review(found, "GpuClass") == {"uid": "u-1", "allowed": True}


def test_a_refusal_says_how_to_write_it() -> None:
    spec = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/vgpu": "1500"}}}]}
    message = review({"metadata": {"name": "p"}, "spec": spec})["status"]["message"]
    assert message == (
        "containers[c].resources.limits[nvidia.com/vgpu]: invalid value '1500': must be from 1 to 1000, "
        "or a multiple of 1000 up to 64000 "
        "(1000 = one GPU); ask for 1000 or 2000"
    )


def test_a_debug_container_sees_no_gpu_and_existing_containers_stay() -> None:
    old = {"metadata": {"name": "p"}, "spec": {"containers": [], "ephemeralContainers": [{"name": "a"}]}}
    new = {
        "metadata": {"name": "p"},
        "spec": {"containers": [], "ephemeralContainers": [{"name": "a"}, {"name": "b"}]},
    }
    request = {"uid": "u", "kind": {"kind": "Pod"}, "subResource": "ephemeralcontainers", "object": new}
    answer = WEBHOOK.review(json.dumps({"request": {**request, "oldObject": old}}).encode())
    operations = json.loads(base64.b64decode(json.loads(answer)["response"]["patch"]))
    void = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert operations == [{"op": "add", "path": "/spec/ephemeralContainers/1/env", "value": void}]


def test_unknown_kinds_are_let_through() -> None:
    assert review({"metadata": {"name": "p"}}, "Widget") == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"request": 7}', b'{"request": {"uid": "u", "kind": {"kind": "Pod"}}}', b"\xff"]
)
def test_a_body_that_is_no_review_is_refused(body: bytes) -> None:
    with pytest.raises(BadFormat):
        WEBHOOK.review(body)


odd: st.SearchStrategy[Any] = st.sampled_from([None, True, -1, 2.5, "", "x", "1e99", [7], {"name": 7}, {"a": None}])


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    pairs: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        pairs = list(cast("dict[str, Any]", document).items())
    elif isinstance(document, list):
        pairs = list(enumerate(cast("list[Any]", document)))
    for key, value in pairs:
        yield from places(value, (*path, key))


def broken(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return document


def env_pods() -> list[dict[str, Any]]:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    annotated = {"name": "p", "annotations": {"auto-management/bitfusion": "all"}}
    limits = {"limits": {"bitfusion.io/gpu-amount": 1}}
    main = {"name": "main", "env": env, "command": ["a", "b"], "resources": limits}
    return [{"metadata": annotated, "spec": {"containers": [main], "initContainers": [{"name": "i", "env": env}]}}]


@settings(max_examples=500)
@given(data=st.data(), found=st.sampled_from([case.pod for case in CASES] + env_pods()), value=odd)
def test_no_broken_pod_crashes_the_reviewer(data: st.DataObject, found: dict[str, Any], value: Any) -> None:
    path = data.draw(st.sampled_from([path for path in places(found) if path]))
    answer = review(broken(found, path, value))
    assert isinstance(answer["allowed"], bool)


def test_a_certificate_is_for_its_hosts_and_trusted_by_its_authority(tmp_path: Path) -> None:
    made = issue_certificate(["webhook.milligpu.svc", "127.0.0.1"], datetime.now(UTC))
    for name in ("certificate", "key", "authority"):
        (tmp_path / name).write_bytes(getattr(made, name))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    for host in ("webhook.milligpu.svc", "127.0.0.1"):
        assert handshake(server, ssl.create_default_context(cafile=str(tmp_path / "authority")), host)
    client = ssl.create_default_context(cafile=str(tmp_path / "authority"))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "somebody.else")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> bool:
    """TLS in memory, as far as the client checks the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (near, far):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is near:
                return True
    return False


def test_cas_are_kept_until_they_expire() -> None:
    lifetime = timedelta(days=30)
    certificates = [
        issue_certificate(["h"], NOW + timedelta(days=day), lifetime) for day in range(AUTHORITIES_MAX + 3)
    ]
    known = b""
    for each in certificates:
        known = trust_bundle(each.authority, known, each.made)
        assert known.startswith(each.authority)
    assert len(x509.load_pem_x509_certificates(known)) == AUTHORITIES_MAX
    later = issue_certificate(["h"], NOW + timedelta(days=40), lifetime)
    assert trust_bundle(later.authority, known, later.made) == later.authority
    assert trust_bundle(later.authority, b"no certificate", later.made) == later.authority
    assert trust_bundle(later.authority, later.authority, later.made) == later.authority


def test_a_certificate_is_replaced_well_before_it_ends() -> None:
    made = issue_certificate(["h"], NOW, timedelta(days=90))
    assert made.renew_at == NOW + timedelta(days=60)


def test_the_namespace_says_where_the_gpu_of_bitfusion_run_is() -> None:
    webhook = PodReviewer(lambda: NormalForm(client_image="client:1"))
    command = ["bash", "-c", "bitfusion run -n 1 -p 0.5 -- python train.py"]

    def answer(label: str | None, **notes: str) -> dict[str, Any]:
        main = {"name": "main", "image": "x", "args": command}
        pod = {"metadata": {"name": "train", "annotations": notes}, "spec": {"containers": [main]}}
        request = {"uid": "u", "kind": {"kind": "Pod"}, "namespace": "n", "object": pod}
        found = json.loads(webhook.review(json.dumps({"request": request}).encode(), bitfusion=label))["response"]
        patch: list[Any] = json.loads(base64.b64decode(found["patch"])) if "patch" in found else []
        return {**found, "pod": apply(pod, patch)}

    def counted(found: dict[str, Any]) -> set[str]:
        return set(found["pod"]["spec"]["containers"][0]["resources"]["limits"])

    assert counted(answer(None)) == counted(answer("local")) == {names.VGPU}
    assert counted(answer("remote")) == {names.REMOTE_VGPU}
    assert counted(answer("local", **{names.ATTACH: "remote"})) == {names.REMOTE_VGPU}
    refused = answer("elsewhere")
    assert not refused["allowed"]
    assert "milligpu.dev/bitfusion" in refused["status"]["message"]
    assert "local or remote" in refused["status"]["message"]
