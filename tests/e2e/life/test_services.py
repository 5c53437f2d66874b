"""An inference service on the real node: its guarantee follows its requests, then its replicas, and back."""

import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from devcluster.api import read_json
from devcluster.errors import DevclusterError
from devcluster.images import BASE
from devcluster.platform import GpuNode
from devcluster.wait import until
from milligpu.model import names
from milligpu.wire.grant import decode_grant
from tests.e2e.life.conftest import milligpu
from tests.e2e.platform.pods import get, is_ready, manifest, pods
from tests.e2e.scheduling import told

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DEADLINE_S = 180.0
PORT = 8080
# A server that counts its requests, as engines do. It is Ready when it listens.
SERVER = f"""
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
served = 0
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global served
        if self.path == "/work":
            served += 1
        body = ("# TYPE served_total counter\\nserved_total " + str(served) + "\\n").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("", {PORT}), Handler).serve_forever()
"""


def deployment(milli: int, version: str = "1") -> dict[str, Any]:
    container = {
        "name": "main",
        "image": BASE.reference,
        "command": ["python3", "-c", SERVER],
        "env": [{"name": "VERSION", "value": version}],
        "ports": [{"containerPort": PORT}],
        "resources": limits(milli),
        "readinessProbe": {"httpGet": {"path": "/metrics", "port": PORT}, "periodSeconds": 1},
    }
    labels = {"app": "chat"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"}, "spec": spec}


def service(**spec: Any) -> dict[str, Any]:
    """A service for which a whole GPU is meant to serve 50 requests a second."""
    wanted: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
        "load": {"port": PORT, "path": "/metrics", "requests": "served_total"},
        "target": {"requests": 50},
        "share": {"max": 400},
        **spec,
    }
    return {
        "apiVersion": names.GROUP_VERSION,
        "kind": "GpuService",
        "metadata": {"name": "chat"},
        "spec": {key: value for key, value in wanted.items() if value is not None},
    }


def apply(node: GpuNode, namespace: str, *objects: dict[str, Any]) -> None:
    node.cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(objects))


def chats(node: GpuNode, namespace: str) -> list[dict[str, Any]]:
    found = [
        each for each in pods(node.cluster, namespace) if each["metadata"].get("labels", {}).get("app") == "chat"
    ]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


def shares(node: GpuNode, namespace: str) -> list[int]:
    """What each pod that is bound is guaranteed."""
    notes = [each["metadata"].get("annotations", {}) for each in chats(node, namespace)]
    grants = [decode_grant(each[names.GRANT]) for each in notes if names.GRANT in each]
    return sorted(each.containers["main"][0].share.milli for each in grants)


def wait_shares(node: GpuNode, namespace: str, what: str, good: Callable[[list[int]], bool]) -> None:
    until(
        what,
        lambda: good(shares(node, namespace)),
        DEADLINE_S,
        last_state=lambda: f"{shares(node, namespace)}; {status(node, namespace)}",
    )


def status(node: GpuNode, namespace: str) -> dict[str, Any]:
    return read_json(node.cluster.client, names.service_path(namespace, "chat")).get("status", {})


def reason(node: GpuNode, namespace: str, condition: str) -> str:
    found = status(node, namespace).get("conditions", [])
    return next((each["reason"] for each in found if each["type"] == condition), "")


def limits(milli: int) -> dict[str, Any]:
    """Little memory, so that only compute is scarce."""
    return {"limits": {names.VGPU: milli, names.VGPU_MEMORY: 1024}}


def running(node: GpuNode, namespace: str, name: str) -> dict[str, Any] | None:
    found = get(node.cluster, namespace, name)
    return found if is_ready(found) else None


class Clients:
    """Sends so many requests a second to the ready pods in turn, without waiting for answers."""

    def __init__(self, node: GpuNode, namespace: str) -> None:
        self.rate = 0.0
        self._hosts: list[str] = []
        self._where = node, namespace
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._send, self._look)]

    def __enter__(self) -> "Clients":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            self._hosts = [each["status"]["podIP"] for each in chats(*self._where) if is_ready(each)]

    def _send(self) -> None:
        """Send what is due: after a pause of the machine all that was missed, so that the average holds."""
        due, sent, last = 0.0, 0, time.monotonic()
        while not self._stop.wait(0.02):
            now = time.monotonic()
            due, last = due + self.rate * min(1.0, now - last), now
            while sent < int(due) and self._hosts:
                sent += 1
                try:
                    urlopen(f"http://{self._hosts[sent % len(self._hosts)]}:{PORT}/work", timeout=1).close()
                except (OSError, HTTPException):
                    pass


@pytest.fixture
def clients(gpu_node: GpuNode, namespace: str) -> Iterator[Clients]:
    with Clients(gpu_node, namespace) as found:
        yield found


def test_load_grows_the_guarantee_then_the_replicas_and_both_go_back(
    gpu_node: GpuNode, namespace: str, clients: Clients
) -> None:
    apply(gpu_node, namespace, deployment(200), service(replicas={"min": 1, "max": 2}))
    wait_shares(gpu_node, namespace, "the template's share", lambda found: found == [200])
    [before] = chats(gpu_node, namespace)
    # 300 milli: the same pod gets them.
    clients.rate = 15
    wait_shares(gpu_node, namespace, "a larger guarantee", lambda found: len(found) == 1 and found[0] >= 280)
    assert [each["metadata"]["uid"] for each in chats(gpu_node, namespace)] == [before["metadata"]["uid"]]
    # 700 milli: more than one pod may have.
    clients.rate = 35
    wait_shares(gpu_node, namespace, "a second pod", lambda found: len(found) == 2 and min(found) > 300)
    assert max(shares(gpu_node, namespace)) <= 400
    clients.rate = 0
    wait_shares(gpu_node, namespace, "the guarantees to go back", lambda found: found == [200, 200])
    wait_shares(gpu_node, namespace, "one pod", lambda found: found == [200])
    shown = milligpu(gpu_node, "-n", namespace, "service", "explain", "chat")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "1 to 2 pods" in shown.stdout
    assert "2 to 1 pods" in shown.stdout
    assert told(gpu_node.cluster, namespace, "chat", "ServiceScaled")
    table = gpu_node.cluster.kubectl("get", "gsvc", "-n", namespace).splitlines()
    assert table[0].split() == ["NAME", "TARGET", "SHARE", "MAX", "PODS", "NEEDED", "READY", "SCALED", "AGE"]
    assert table[1].split()[:3] == ["chat", "chat", "200"]


def test_a_loan_goes_to_a_pod_that_waits_and_a_deleted_service_gives_all_shares_back(
    gpu_node: GpuNode, namespace: str, clients: Clients
) -> None:
    apply(gpu_node, namespace, deployment(200), service(share={"max": 900}))
    clients.rate = 40
    wait_shares(gpu_node, namespace, "a loan", lambda found: len(found) == 1 and found[0] > 600)
    apply(gpu_node, namespace, manifest("other", resources=limits(700)))
    other = until("the waiting pod to run", lambda: running(gpu_node, namespace, "other"), DEADLINE_S)
    assert decode_grant(other["metadata"]["annotations"][names.GRANT]).containers["main"][0].share.milli == 700
    assert max(shares(gpu_node, namespace)) <= 300
    [pod] = chats(gpu_node, namespace)
    assert pod["metadata"]["annotations"][names.SERVICE] == "chat"
    gpu_node.cluster.kubectl("delete", "gsvc", "chat", "-n", namespace)

    def released() -> bool:
        [pod] = chats(gpu_node, namespace)
        notes = pod["metadata"]["annotations"]
        [held] = decode_grant(notes[names.GRANT]).containers["main"]
        return names.SERVICE not in notes and (held.share.milli, held.share.limit) == (200, 200)

    until("the share of the template", released, DEADLINE_S, last_state=lambda: str(chats(gpu_node, namespace)))


def test_an_update_on_a_full_gpu_completes_because_the_old_pod_lends_its_guarantee(
    gpu_node: GpuNode, namespace: str
) -> None:
    apply(gpu_node, namespace, manifest("neighbor", resources=limits(400)), deployment(600))
    wait_shares(gpu_node, namespace, "a full GPU", lambda found: found == [600])
    until("the neighbor", lambda: running(gpu_node, namespace, "neighbor"), DEADLINE_S)
    until("the old pod", lambda: all(map(is_ready, chats(gpu_node, namespace))), DEADLINE_S)
    [old] = chats(gpu_node, namespace)
    apply(gpu_node, namespace, deployment(600, "2"))

    def new_pod() -> dict[str, Any] | None:
        found = [each for each in chats(gpu_node, namespace) if each["metadata"]["uid"] != old["metadata"]["uid"]]
        return found[0] if found else None

    # Without a service the update hangs: the new pod waits for a GPU that the old one leaves only for the new one.
    waits = until("the new pod", new_pod, DEADLINE_S)["metadata"]["name"]
    until("why it waits", lambda: told(gpu_node.cluster, namespace, waits, "GPUUnavailable"), DEADLINE_S)
    apply(gpu_node, namespace, service(share={"max": 600}))

    def updated() -> bool:
        found = chats(gpu_node, namespace)
        return len(found) == 1 and found[0]["metadata"]["name"] == waits and is_ready(found[0])

    until("the update", updated, DEADLINE_S, last_state=lambda: f"{status(gpu_node, namespace)}")
    wait_shares(gpu_node, namespace, "the guarantee to be handed over", lambda found: found == [600])
    neighbor = running(gpu_node, namespace, "neighbor")
    assert neighbor is not None
    assert decode_grant(neighbor["metadata"]["annotations"][names.GRANT]).generation == 1
    until("the condition", lambda: reason(gpu_node, namespace, "Updated") == "UpToDate", DEADLINE_S)
    said = [each["message"] for each in status(gpu_node, namespace)["decisions"]]
    assert any(each.startswith("update: LendingShare") for each in said), said


def test_what_the_api_server_refuses_of_a_service(gpu_node: GpuNode, namespace: str) -> None:
    for bad, message in (
        (service(share={"min": 500, "max": 400}), "min: at most max"),
        (service(replicas={"min": 0, "max": 4}), "spec.replicas.min: Invalid value: 0"),
        (service(replicas={"min": 3, "max": 2}), "min: at most max"),
        (service(target={"requests": 0}), "spec.target.requests: Invalid value: 0"),
        (service(target={"requests": 1, "running": 1}), "one of requests and running, or neither"),
        (service(load={"preset": "vllm", "path": "/x"}), "preset: with it only port can be set"),
        (service(load={}), "a preset, or port, path and the names of metrics"),
        (service(front={"hold": "2m"}), 'unknown field "spec.front"'),
        (service(idleAfter="10m"), 'unknown field "spec.idleAfter"'),
        (service(update={"gap": "5s"}), 'unknown field "spec.update.gap"'),
    ):
        with pytest.raises(DevclusterError) as refused:
            apply(gpu_node, namespace, bad)
        assert message in str(refused.value)
