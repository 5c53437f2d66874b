"""What commands read from the API server."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from milligpu.kube import fetch
from milligpu.kube.api import ApiRefused
from milligpu.model.errors import BadRequest, Unavailable


def client(answer: Callable[[httpx2.Request], httpx2.Response]) -> httpx2.Client:
    return httpx2.Client(base_url="https://api", transport=httpx2.MockTransport(answer))


def pod(version: str, **annotations: str) -> dict[str, Any]:
    meta = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": version, "annotations": annotations}
    return {"metadata": meta, "spec": {"containers": []}}


def test_long_lists_are_read_in_pages() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/api/v1/pods"
        more = request.url.params.get("continue")
        assert more in {None, "next page"}
        meta = {"resourceVersion": "9"} if more else {"resourceVersion": "9", "continue": "next page"}
        return httpx2.Response(200, json={"metadata": meta, "items": [pod("2" if more else "1")]})

    found = fetch.list_pods(client(answer))
    assert [each.metadata.resourceVersion for each in found] == ["1", "2"]
    assert json.loads(bytes(found[0].spec)) == {"containers": []}


def test_a_refusal_has_the_message_of_the_api_server() -> None:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(403, json={"kind": "Status", "message": "pods is forbidden"})

    with pytest.raises(ApiRefused, match="pods is forbidden") as refused:
        fetch.get_pod(client(answer), "ns", "p")
    assert refused.value.status == 403


def test_a_pod_that_does_not_exist_is_bad_input() -> None:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(404, json={"kind": "Status", "message": 'pods "p" not found'})

    with pytest.raises(BadRequest, match="pod: invalid value 'ns/p': must be an existing pod"):
        fetch.get_pod(client(answer), "ns", "p")


def test_an_api_server_that_is_away_is_unavailable() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    with pytest.raises(Unavailable, match="/api/v1/nodes: ConnectError refused"):
        fetch.list_nodes(client(answer))


def test_a_pod_is_watched_from_the_version_that_was_written() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "PATCH":
            assert request.headers["Content-Type"] == "application/merge-patch+json"
            return httpx2.Response(200, json=pod("5", a="1"))
        wanted = {
            "watch": "true",
            "fieldSelector": "metadata.name=p",
            "resourceVersion": "5",
            "timeoutSeconds": "3",
        }
        assert dict(request.url.params) == wanted
        changes = [
            {"type": "MODIFIED", "object": pod("6", a="2")},
            {"type": "DELETED", "object": pod("7")},
            {"type": "ADDED", "object": pod("8")},
        ]
        return httpx2.Response(200, text="\n".join(map(json.dumps, changes)))

    api = client(answer)
    written = fetch.annotate_pod(api, "ns", "p", {"a": "1"})
    assert [each.metadata.annotations for each in fetch.watch_pod(api, written, 3)] == [{"a": "2"}]


def test_messages_of_events_are_those_of_one_pod_and_reason() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.params["fieldSelector"] == "involvedObject.uid=u,reason=ResizeWaits"
        return httpx2.Response(200, json={"items": [{"message": "first"}, {"message": "second"}]})

    assert fetch.event_messages(client(answer), "ns", "u", "ResizeWaits") == ["first", "second"]
