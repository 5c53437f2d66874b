"""Manifests of every dialect, as their users wrote them, end on a GPU: admission, decision, grant."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.api import read_json
from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.platform import SchedulerService, account_kubeconfig, free_port, install
from devcluster.wait import until
from milligpu.manifests.bundle import SCHEDULER
from milligpu.manifests.webhook_configuration import WebhookAddress
from milligpu.model import names
from milligpu.wire.grant import decode_grant
from tests.e2e.scheduling import default_scheduler, overcommitted

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples" / "dialects"
# Of the largest card.
WHOLE_MIB = 81920


@pytest.fixture
def admitting(guarded: Cluster) -> Iterator[Cluster]:
    """The cluster with the webhook, and a default scheduler that asks the service."""
    port = free_port()
    install(guarded, webhook=WebhookAddress(url=f"https://127.0.0.1:{port}"))
    arguments = ("--namespace", "milligpu", "--webhook-port", str(port))
    service = SchedulerService(guarded, "service", *arguments, kubeconfig=account_kubeconfig(guarded, SCHEDULER))
    with default_scheduler(service.start().wait_ready()):
        yield guarded
    service.process.stop()


def test_every_example_lands_on_the_gpu_that_was_decided(admitting: Cluster) -> None:
    cluster = admitting
    with new_namespace(cluster) as namespace:
        for file in sorted(EXAMPLES.glob("*.yaml")):
            until(f"{file.name} to be admitted", lambda file=file: _applied(cluster, namespace, file), 60)

        until(
            "every pod to be placed",
            lambda: not _waiting(cluster, namespace),
            90,
            last_state=lambda: str(_waiting(cluster, namespace)),
        )

        found = _pods(cluster, namespace)
        assert len(found) >= 16
        for pod in found:
            grant = decode_grant(pod["metadata"]["annotations"][names.GRANT])
            assert (grant.uid, grant.node) == (pod["metadata"]["uid"], pod["spec"]["nodeName"])
            assert all(gpu.startswith(f"GPU-{grant.node}-") for gpu in grant.gpus)
        running = [pod for pod in found if pod["status"]["phase"] == "Running"]
        given = [decode_grant(pod["metadata"]["annotations"][names.GRANT]) for pod in running]
        assert overcommitted(given, WHOLE_MIB) == []


def _applied(cluster: Cluster, namespace: str, file: Path) -> bool:
    """Refused while the API server does not know the webhook's certificate yet."""
    said = cluster.kubectl("apply", "-n", namespace, "-f", str(file), check=False)
    return said.count("created") + said.count("unchanged") + said.count("configured") == _documents(file)


def _documents(file: Path) -> int:
    return sum(line.startswith("kind:") for line in file.read_text().splitlines())


def _pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    return read_json(cluster.client, f"/api/v1/namespaces/{namespace}/pods")["items"]


def _waiting(cluster: Cluster, namespace: str) -> list[str]:
    found = _pods(cluster, namespace)
    return [pod["metadata"]["name"] for pod in found if not pod["spec"].get("nodeName")] or (
        ["no pod at all"] if not found else []
    )
