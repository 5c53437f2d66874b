"""What a real cluster would refuse is refused here, too; else tests would pass with rights nobody has."""

import ssl

import httpx2
import pytest
from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node, Pod, Secret

from devcluster.api import list_in, patch_global
from devcluster.cluster import Cluster
from devcluster.kwok import MANAGED
from devcluster.node import KUBELET_PORT
from devcluster.pods import pod

pytestmark = pytest.mark.e2e

LABEL_PATCH = {"metadata": {"labels": {"test": "label"}}}


@pytest.fixture
def node_client(real_cluster: Cluster) -> Client:
    """The API with the credentials of the real node's kubelet."""
    return real_cluster.client_of(real_cluster.control_plane.pki.node_kubeconfig(real_cluster.nodes[0].name))


def test_a_node_may_label_itself_but_no_other_node(real_cluster: Cluster, node_client: Client) -> None:
    own, other = real_cluster.nodes[0].name, "somebody-else"
    real_cluster.client.create(Node(metadata=ObjectMeta(name=other, annotations={MANAGED: "none"})))
    try:
        patch_global(node_client, Node, own, LABEL_PATCH)
        with pytest.raises(ApiError, match="is not allowed to modify node") as refused:
            patch_global(node_client, Node, other, LABEL_PATCH)
    finally:
        real_cluster.client.delete(Node, other)
    assert refused.value.status.code == 403


def test_a_node_reads_no_secret_that_none_of_its_pods_uses(
    real_cluster: Cluster, node_client: Client, namespace: str
) -> None:
    real_cluster.client.create(Secret(metadata=ObjectMeta(name="mine"), stringData={"a": "b"}), namespace=namespace)

    with pytest.raises(ApiError) as refused:
        node_client.get(Secret, "mine", namespace=namespace)

    assert refused.value.status.code == 403


def test_a_user_without_a_role_may_do_nothing(control_plane: Cluster, namespace: str) -> None:
    nobody = control_plane.client_of(control_plane.control_plane.pki.kubeconfig("nobody"))

    for attempt in (
        lambda: list_in(nobody, Pod, namespace),
        lambda: nobody.create(pod("no"), namespace=namespace),
    ):
        with pytest.raises(ApiError) as refused:
            attempt()
        assert refused.value.status.code == 403


def test_the_api_server_refuses_clients_without_a_certificate(control_plane: Cluster) -> None:
    with _https(control_plane) as client:
        answer = client.get(f"{control_plane.control_plane.server}/api/v1/nodes")

    assert answer.status_code == 403
    assert "system:anonymous" in answer.text


def test_the_kubelet_refuses_clients_without_a_certificate(real_cluster: Cluster) -> None:
    node = real_cluster.nodes[0]
    with _https(real_cluster) as client:
        answer = client.get(f"https://{node.address}:{KUBELET_PORT}/pods")

    assert answer.status_code == 401


def test_a_stranger_with_a_valid_certificate_is_no_kubelet_admin(real_cluster: Cluster) -> None:
    pair = real_cluster.control_plane.pki.cluster.client("stranger", file="stranger")
    context = _trust(real_cluster)
    context.load_cert_chain(pair.certificate, pair.key)
    with httpx2.Client(verify=context, trust_env=False) as client:
        answer = client.get(f"https://{real_cluster.nodes[0].address}:{KUBELET_PORT}/pods")

    assert answer.status_code == 403


def test_etcd_refuses_certificates_of_the_cluster(control_plane: Cluster) -> None:
    pki = control_plane.control_plane.pki
    administrator = pki.cluster.client("root", ("system:masters",), file="wrong-authority")
    context = ssl.create_default_context(cafile=str(pki.etcd.certificate))
    context.load_cert_chain(administrator.certificate, administrator.key)
    endpoint = f"https://127.0.0.1:{control_plane.port('etcd')}/version"
    with httpx2.Client(verify=context, trust_env=False) as client, pytest.raises(httpx2.TransportError):
        client.get(endpoint)

    context = ssl.create_default_context(cafile=str(pki.etcd.certificate))
    context.load_cert_chain(pki.files.etcd_client.certificate, pki.files.etcd_client.key)
    with httpx2.Client(verify=context, trust_env=False) as client:
        assert client.get(endpoint).status_code == 200


def _trust(cluster: Cluster) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(cluster.control_plane.pki.cluster.certificate))


def _https(cluster: Cluster) -> httpx2.Client:
    """A client that knows the cluster's authority but has no certificate of its own."""
    return httpx2.Client(verify=_trust(cluster), trust_env=False)
