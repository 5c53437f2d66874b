"""Several nodes in one cluster, and several clusters on one machine, do not get into each other's way."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from lightkube.resources.core_v1 import Node

from devcluster.api import list_all
from devcluster.cluster import Cluster
from devcluster.fixtures import NewCluster, new_namespace
from devcluster.node import Node as RealNode
from devcluster.pods import node_name, pod, wait_for_phase

pytestmark = pytest.mark.e2e

SERVE = """
import http.server
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"hello from the other node")
http.server.HTTPServer(("", 8080), Hello).serve_forever()
"""
ASK = """
import sys, time, urllib.request
for _ in range(100):
    try:
        print(urllib.request.urlopen(f"http://{sys.argv[1]}:8080", timeout=5).read().decode()); break
    except OSError: time.sleep(0.1)
"""


def test_two_clusters_started_at_once_live_side_by_side_and_pods_of_two_nodes_reach_each_other(
    new_cluster: NewCluster,
) -> None:
    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(new_cluster, real_nodes=nodes) for nodes in (2, 1)]
        one, two = (start.result() for start in starts)

    for cluster in (one, two):
        assert _node_names(cluster) == {node.name for node in cluster.nodes}
        with new_namespace(cluster) as namespace:
            cluster.client.create(pod("hello", ["echo", cluster.name]), namespace=namespace)
            wait_for_phase(cluster, namespace, "hello", "Succeeded")
            assert "".join(cluster.client.log("hello", namespace=namespace)).strip() == cluster.name

    _nodes_have_their_own_directories(*one.nodes)
    _pods_reach_each_other(one)

    one.stop()
    one.stop()  # as a fixture will do once more

    assert not one.folder.exists()
    assert _node_names(two) == {two.nodes[0].name}


def _nodes_have_their_own_directories(first: RealNode, second: RealNode) -> None:
    assert (first.device_plugins_dir / "kubelet.sock").is_socket()
    assert (second.device_plugins_dir / "kubelet.sock").is_socket()
    assert first.pod_resources_socket.is_socket()
    (first.cdi_dir / "only-here").touch()
    assert first.run_inside("ls", "/var/run/cdi").stdout.split() == ["only-here"]
    assert second.run_inside("ls", "/var/run/cdi").stdout.split() == []


def _pods_reach_each_other(cluster: Cluster) -> None:
    first, second = cluster.nodes
    with new_namespace(cluster) as namespace:
        server = pod("server", ["python3", "-c", SERVE], nodeName=first.name)
        cluster.client.create(server, namespace=namespace)
        running = wait_for_phase(cluster, namespace, "server", "Running")
        assert running.status
        ask = ["python3", "-c", ASK, running.status.podIP or ""]
        cluster.client.create(pod("client", ask, nodeName=second.name), namespace=namespace)
        done = wait_for_phase(cluster, namespace, "client", "Succeeded")

        assert node_name(done) == second.name
        said = "".join(cluster.client.log("client", namespace=namespace))
        assert said.strip() == "hello from the other node"


def _node_names(cluster: Cluster) -> set[str]:
    return {(node.metadata.name if node.metadata else "") or "" for node in list_all(cluster.client, Node)}
