"""What `milligpu uninstall` does to pods: events before, and no gate of a queue afterwards."""

import asyncio
from typing import Any, cast

import msgspec

from milligpu.installation.uninstall import announce, clean_cluster
from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.model import names


def pod(name: str, *gates: str, **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", **metadata}
    return {"metadata": meta, "spec": {"schedulingGates": [{"name": gate} for gate in gates]}, "status": {}}


PODS = [
    pod("plain"),
    pod("tenant", annotations={names.GRANT: "{}"}),
    pod("waiting", "example.com/other", names.QUEUE),
    pod("of-another-system", "example.com/other"),
]


class Server:
    """An API server with these pods, and nothing of milligpu that runs."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []

    async def get(self, path: str, **_more: object) -> bytes:
        if path == "/api/v1/pods":
            return msgspec.json.encode({"items": PODS})
        if "/daemonsets/" in path:
            raise ApiRefused("GET", 404, "not found")
        return msgspec.json.encode({"items": []})

    async def send(self, method: str, path: str, body: Any = None, **_more: object) -> bytes:
        self.sent.append((method, path, body))
        return b"{}"


def test_only_the_gates_of_queues_are_removed_and_their_pods_get_an_event() -> None:
    server, said = Server(), list[str]()
    asyncio.run(announce(cast(ApiClient, server), said.append))
    regarding = [body["regarding"]["name"] for _, path, body in server.sent if path.endswith("/events")]
    assert sorted(regarding) == ["tenant", "waiting"]
    server.sent.clear()

    asyncio.run(clean_cluster(cast(ApiClient, server), "milligpu", said.append, 1.0))
    patched = [(path, body) for method, path, body in server.sent if method == "PATCH"]
    gate = "/spec/schedulingGates/1"
    wanted = [
        {"op": "test", "path": "/metadata/uid", "value": "uid-waiting"},
        {"op": "test", "path": f"{gate}/name", "value": names.QUEUE},
        {"op": "remove", "path": gate},
    ]
    assert patched == [("/api/v1/namespaces/default/pods/waiting", wanted)]
    assert "pod default/waiting: removed the scheduling gate of its queue" in said
