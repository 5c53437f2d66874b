"""kube-scheduler and the service over TLS, each with a certificate, by the file that `scheduler config` writes."""

import json
import ssl
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from devcluster.certs import Authority
from devcluster.cluster import Cluster
from devcluster.fixtures import NewKwokNodes
from devcluster.platform import SchedulerService
from devcluster.pods import wait_for_phase
from devcluster.wait import until
from milligpu.cli.main import cli
from tests.e2e.scheduling import gpu_nodes, grants, share_pod

pytestmark = pytest.mark.e2e

NAME = "by-tls"


def test_pods_are_placed_over_tls_and_strangers_are_not_let_in(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str, tmp_path: Path
) -> None:
    authority = Authority("extenders", tmp_path)
    server = authority.server("service", ["127.0.0.1"], file="service")
    client = authority.client("kube-scheduler", file="client")
    files = ("--tls-cert", str(server.certificate), "--tls-key", str(server.key))
    only = ("--tls-client-ca", str(authority.certificate), "--namespace", namespace, "--scheduler-name", NAME)
    service = SchedulerService(control_plane, NAME, *files, *only).start()
    url = service.url.replace("http://", "https://")
    known = ssl.create_default_context(cafile=authority.certificate)
    known.load_cert_chain(client.certificate, client.key)

    def ready() -> bool:
        return httpx2.get(f"{url}/leading", verify=known, timeout=5).status_code == 200

    until("the service", ready, 60, retry=(httpx2.TransportError,))
    stranger = ssl.create_default_context(cafile=authority.certificate)
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{url}/leading", verify=stranger, timeout=5)

    trust = ["--tls-ca", authority.certificate, "--tls-cert", client.certificate, "--tls-key", client.key]
    arguments = ["scheduler", "config", "--url", url, "--scheduler-name", NAME, "-o", "json", *map(str, trust)]
    control_plane.start_scheduler(json.loads(CliRunner().invoke(cli, arguments).stdout), NAME)
    nodes = gpu_nodes(kwok_cluster, 1)
    control_plane.client.create(share_pod("p", 500, nodes, schedulerName=NAME), namespace=namespace)
    wait_for_phase(control_plane, namespace, "p", "Running")
    assert grants(control_plane, namespace)["p"].node == nodes.names[0]
    control_plane.control_plane.stop_scheduler(NAME)
    service.process.stop()
