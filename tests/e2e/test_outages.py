"""Ordinary pods never depend on milligpu: whatever of it is down, pods without GPUs are created, placed and run."""

import base64
import json
import ssl
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from lightkube.resources.core_v1 import Namespace, Pod

from devcluster.api import list_in
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fixtures import new_namespace
from devcluster.platform import NAMESPACE, free_port, install
from devcluster.wait import until
from milligpu.kube.x509 import certificate_pem, key_pem, new_key, sign_authority, sign_leaf, subject_name
from milligpu.manifests.kube_scheduler import in_default_scheduler
from milligpu.manifests.mutating_policies import BINDING, POLICY, mutating_policies
from milligpu.manifests.webhook_configuration import CONFIGURATION, WebhookAddress
from milligpu.model import names
from tests.e2e.test_admission import apply, manifest, send_dry

pytestmark = pytest.mark.e2e

SCHEDULER = "with-a-dead-extender"
HALF = "milligpu-half-deleted"
DAY = timedelta(days=1)
# Pods of controllers are created by requests of their own, which the webhook configurations match, too.
CONTROLLERS = ("Deployment", "StatefulSet", "Job")
Outage = Callable[[Cluster, Path], "Generator[tuple[WebhookAddress, str]]"]


@pytest.fixture(scope="module")
def scheduler(guarded: Cluster) -> Iterator[str]:
    """The cluster's own kube-scheduler as `milligpu scheduler config` sets it up, with no service behind it."""
    nobody = f"http://127.0.0.1:{free_port()}"
    guarded.start_scheduler(in_default_scheduler(nobody), SCHEDULER)
    yield SCHEDULER
    guarded.control_plane.stop_scheduler(SCHEDULER)


@pytest.fixture
def namespace(guarded: Cluster) -> Iterator[str]:
    with new_namespace(guarded) as name:
        yield name


def webhook_down(cluster: Cluster, folder: Path) -> "Generator[tuple[WebhookAddress, str]]":
    """Nobody listens where the API server calls."""
    del cluster, folder
    yield WebhookAddress(NAMESPACE, url=f"https://127.0.0.1:{free_port()}"), "connection refused"


def certificate_expired(cluster: Cluster, folder: Path) -> "Generator[tuple[WebhookAddress, str]]":
    """A webhook of a CA that the API server trusts, with a certificate that was valid until yesterday."""
    authority, key, name = new_key(), new_key(), subject_name("milligpu-webhook")
    then = datetime.now(UTC) - 2 * DAY
    ca = sign_authority(name, authority, then, 10 * DAY)
    (folder / "ca.pem").write_bytes(certificate_pem(ca))
    usage = [ExtendedKeyUsageOID.SERVER_AUTH]
    expired = sign_leaf(name, key, (name, authority), then, DAY, usages=usage, hosts=["127.0.0.1"])
    pem = folder / "expired.pem"
    pem.write_bytes(certificate_pem(expired) + key_pem(key))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = WebhookAddress(NAMESPACE, url=f"https://127.0.0.1:{server.server_address[1]}")
        yield address, "certificate has expired"
        server.shutdown()


def namespace_half_deleted(cluster: Cluster, folder: Path) -> "Generator[tuple[WebhookAddress, str]]":
    """Somebody deleted the namespace: all in it is gone but an object that keeps it, and the webhooks remain."""
    del folder
    yield WebhookAddress(HALF), "not found"
    cluster.kubectl(
        "patch", "configmap", "keeper", "-n", HALF, "--type=merge", '-p={"metadata":{"finalizers":null}}'
    )


def delete_half(cluster: Cluster) -> None:
    keeper = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "keeper", "finalizers": ["a.example/b"]},
    }
    apply(cluster, HALF, keeper)
    cluster.client.delete(Namespace, HALF)

    def is_ending() -> bool:
        status = cluster.client.get(Namespace, HALF).status
        return status is not None and status.phase == "Terminating"

    until("the namespace to be half deleted", is_ending, 30)


@contextmanager
def suffering(cluster: Cluster, outage: Outage, folder: Path, *, mutating: bool) -> Generator[str]:
    """Install milligpu and let it be down; yields what the API server says about its calls of the webhook."""
    with contextmanager(outage)(cluster, folder) as (address, complaint):
        if not mutating:
            policies = [each["metadata"]["name"] for each in mutating_policies(address) if each["kind"] == POLICY]
            for kind in (BINDING, POLICY):
                cluster.kubectl("delete", kind, "--ignore-not-found", *policies)
        install(cluster, namespace=address.namespace, webhook=address, mutating=mutating)
        if outage is certificate_expired:
            trust(cluster, folder)
        if outage is namespace_half_deleted:
            delete_half(cluster)
        try:
            yield complaint
        finally:
            for kind in ("mutating", "validating"):
                cluster.kubectl("delete", f"{kind}webhookconfiguration", CONFIGURATION, "--ignore-not-found")
            # The policies name the accounts of the namespace in which milligpu is installed.
            install(cluster)


def trust(cluster: Cluster, folder: Path) -> None:
    """Write the CA into the configurations, as the service does while it runs."""
    bundle = base64.b64encode((folder / "ca.pem").read_bytes()).decode()
    for kind in ("mutating", "validating"):
        name = f"{kind}webhookconfiguration"
        found = json.loads(cluster.kubectl("get", name, CONFIGURATION, "-o", "json"))
        for each in found["webhooks"]:
            each["clientConfig"]["caBundle"] = bundle
        cluster.kubectl("replace", "-f", "-", stdin=json.dumps(found))


def workload(kind: str, scheduler: str) -> dict[str, Any]:
    pod = manifest("p")
    pod["spec"]["schedulerName"] = scheduler
    name = f"by-{kind.lower()}"
    template: dict[str, Any] = {"metadata": {"labels": {"app": name}}, "spec": pod["spec"]}
    spec: dict[str, Any] = {"template": template}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    spec |= {"selector": {"matchLabels": {"app": name}}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def refusal(cluster: Cluster, namespace: str) -> str:
    """What a user hears who requests a GPU now; empty if it is granted."""
    try:
        send_dry(cluster, namespace, manifest("asks", {names.VGPU: 100}))
    except DevclusterError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("mutating", [True, False], ids=["1.36", "before-1.36"])
@pytest.mark.parametrize("outage", [webhook_down, certificate_expired, namespace_half_deleted])
def test_pods_without_gpus_start_while_milligpu_is_down(
    guarded: Cluster, namespace: str, scheduler: str, tmp_path: Path, outage: Outage, *, mutating: bool
) -> None:
    with suffering(guarded, outage, tmp_path, mutating=mutating) as complaint:
        # The outage is real: who requests a GPU hears of it, and gets no pod.
        until("the API server to call the webhook", lambda: complaint in refusal(guarded, namespace), 30)
        plain = manifest("plain")
        plain["spec"]["schedulerName"] = scheduler
        apply(guarded, namespace, plain, *(workload(kind, scheduler) for kind in CONTROLLERS))

        def running() -> bool:
            pods = list_in(guarded.client, Pod, namespace)
            phases = [each.status.phase for each in pods if each.status is not None]
            return len(phases) == 1 + len(CONTROLLERS) and set(phases) <= {"Running", "Succeeded"}

        until("four pods without GPUs to run", running, 60)
    with suppress(DevclusterError):
        guarded.kubectl("delete", "namespace", HALF, "--ignore-not-found", "--timeout=30s")
