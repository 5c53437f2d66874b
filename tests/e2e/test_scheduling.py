"""The real kube-scheduler counts what KWOK nodes have, and asks the extender it was configured with."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from lightkube.resources.core_v1 import Pod

from devcluster.cluster import Cluster
from devcluster.fixtures import NewKwokNodes
from devcluster.pods import node_name, pod, wait_for_phase, why_unscheduled
from devcluster.wait import until

pytestmark = pytest.mark.e2e

VGPU = "nvidia.com/vgpu"


def test_an_extended_resource_on_a_kwok_node_is_counted(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str
) -> None:
    nodes = kwok_cluster(1, resources={VGPU: "8000"})

    def create(name: str, amount: str) -> None:
        asked = pod(
            name, resources={VGPU: amount}, nodeSelector=nodes.selector, tolerations=list(nodes.tolerations)
        )
        control_plane.client.create(asked, namespace=namespace)

    create("fits", "6000")
    placed = wait_for_phase(control_plane, namespace, "fits", "Running")
    assert node_name(placed) == nodes.names[0]

    create("too-much", "2001")

    def reason() -> str | None:
        return why_unscheduled(control_plane.client.get(Pod, "too-much", namespace=namespace)) or None

    said = until("the scheduler's word on the second pod", reason, 20)
    assert f"Insufficient {VGPU}" in said
    create("fits-exactly", "2000")
    wait_for_phase(control_plane, namespace, "fits-exactly", "Running")


class OnlyLastNode(BaseHTTPRequestHandler):
    """A scheduler extender that lets only the node pass whose name is last in the alphabet."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked["Pod"]["metadata"]["name"])  # type: ignore[attr-defined]
        answer = json.dumps({"NodeNames": [max(asked["NodeNames"])], "FailedNodes": {}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


class Extender(ThreadingHTTPServer):
    """Remembers which pods it was asked about."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), OnlyLastNode)
        self.asked: list[str] = []


@pytest.fixture
def extender() -> Iterator[Extender]:
    with Extender() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_kube_scheduler_asks_the_extender_and_obeys(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str, extender: Extender
) -> None:
    nodes = kwok_cluster(5)
    url = f"http://127.0.0.1:{extender.server_port}"
    config = {"extenders": [{"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}]}
    control_plane.start_scheduler(config, "with-extender")
    names = [f"pod-{number}" for number in range(4)]
    for name in names:
        asked = pod(
            name,
            schedulerName="with-extender",
            nodeSelector=nodes.selector,
            tolerations=list(nodes.tolerations),
        )
        control_plane.client.create(asked, namespace=namespace)

    placed = [wait_for_phase(control_plane, namespace, name, "Running") for name in names]
    control_plane.control_plane.stop_scheduler("with-extender")

    assert {node_name(each) for each in placed} == {max(nodes.names)}
    assert set(extender.asked) == set(names)
