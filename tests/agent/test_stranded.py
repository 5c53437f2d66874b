"""When a pod counts as one that its kubelet never starts; every doubt keeps its share."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from milligpu.agent.attach_plan import NodePod
from milligpu.agent.pods import read_node_pod
from milligpu.agent.stranded import CERTAIN_S, StrandedPods
from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.kube.events import EventRecorder, PodEvent
from milligpu.kubelet import rpc
from milligpu.kubelet._generated import cri_pb2 as pb
from milligpu.model.reasons import EventReason
from milligpu.model.request import PodRef
from milligpu.wire.kubernetes import decode_pod

UID = "11111111-2222-3333-4444-555555555555"
POD = NodePod(PodRef("default", "once", UID), {}, may_strand=True)


class Node:
    """A node with one pod: what its runtime, kernel and kubelet say, and what the API server is told."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "cri.sock"
        self.sandboxes: Sequence[int] = [pb.SANDBOX_NOTREADY]
        self.containers: Sequence[int] = [pb.CONTAINER_CREATED]
        self.running: set[str] = set()
        self.pods: dict[str, NodePod] = {UID: POD}
        self.holders: set[str] = {UID}
        self.kubelet = True
        self.now = 0.0
        self.patches: list[Any] = []
        self.failures: list[Exception] = []
        self.events: list[PodEvent] = []

    async def send(self, method: str, path: str, body: Any, **_more: object) -> bytes:
        assert (method, path) == ("PATCH", "/api/v1/namespaces/default/pods/once/status")
        if self.failures:
            raise self.failures.pop(0)
        self.patches.append(body)
        return b"{}"

    def record(self, event: PodEvent, **_more: object) -> bool:
        self.events.append(event)
        return True

    async def _answers(self) -> bool:
        return self.kubelet

    async def _sandboxes(self, request: pb.ListPodSandboxRequest) -> pb.ListPodSandboxResponse:
        assert dict(request.filter.label_selector) == {"io.kubernetes.pod.uid": UID}
        return pb.ListPodSandboxResponse(items=[pb.PodSandbox(state=cast(Any, state)) for state in self.sandboxes])

    async def _containers(self, request: pb.ListContainersRequest) -> pb.ListContainersResponse:
        assert dict(request.filter.label_selector) == {"io.kubernetes.pod.uid": UID}
        found = [pb.Container(state=cast(Any, state)) for state in self.containers]
        return pb.ListContainersResponse(containers=found)

    def looks(self, *steps: "tuple[float, dict[str, Any]]", runtime: bool = True) -> None:
        """Look once, then change something and look again after a while, for each step."""
        methods = {
            "ListPodSandbox": rpc.answering(pb.ListPodSandboxRequest, self._sandboxes),
            "ListContainers": rpc.answering(pb.ListContainersRequest, self._containers),
        }

        async def run() -> None:
            server = await rpc.serve(self.socket, "runtime.v1.RuntimeService", methods) if runtime else None
            pods = StrandedPods(
                cast(ApiClient, self),
                cast(EventRecorder, self),
                runtime=self.socket,
                pods=lambda: self.pods,
                holders=lambda: self.holders,
                running=lambda: self.running,
                kubelet_answers=self._answers,
                now=lambda: self.now,
            )
            await pods.look()
            for later_s, changes in steps:
                self.now += later_s
                for name, value in changes.items():
                    setattr(self, name, value)
                await pods.look()
            if server is not None:
                await server.stop(None)

        asyncio.run(run())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_pod_whose_container_was_created_and_never_started_is_marked_as_failed_with_an_event(node: Node) -> None:
    node.looks((CERTAIN_S - 1, {}))
    assert node.patches == []
    node.looks((CERTAIN_S, {}))
    (patch,) = node.patches
    assert patch["metadata"] == {"uid": UID}
    assert (patch["status"]["phase"], patch["status"]["reason"]) == ("Failed", "PodStranded")
    assert [each.reason for each in node.events] == [EventReason.STRANDED]


@pytest.mark.parametrize(
    "doubt",
    [
        {"containers": [pb.CONTAINER_RUNNING]},
        {"containers": [pb.CONTAINER_CREATED, pb.CONTAINER_RUNNING]},
        {"containers": [pb.CONTAINER_UNKNOWN]},
        {"containers": [pb.CONTAINER_EXITED]},
        {"containers": []},
        {"sandboxes": [pb.SANDBOX_NOTREADY, pb.SANDBOX_READY]},
        {"sandboxes": []},
        {"running": {UID}},
        {"kubelet": False},
        {"pods": dict[str, NodePod]()},
        {"pods": {UID: replace(POD, may_strand=False)}},
        {"holders": set[str]()},
    ],
    ids=str,
)
def test_any_doubt_keeps_the_share_and_starts_the_time_again(node: Node, doubt: dict[str, Any]) -> None:
    before = {name: getattr(node, name) for name in doubt}
    node.looks((CERTAIN_S, doubt), (CERTAIN_S, {}), (1.0, before), (CERTAIN_S - 1, {}))
    assert node.patches == []


def test_a_marked_pod_that_the_kubelet_reports_as_pending_again_is_marked_again(node: Node) -> None:
    failed = {UID: replace(POD, finished=True, may_strand=False)}
    node.looks((CERTAIN_S, {}), (1.0, {"pods": failed, "holders": set()}), (5.0, {"pods": {UID: POD}}))
    assert len(node.patches) == 2
    assert len(node.events) == 1


def test_a_runtime_that_does_not_answer_keeps_the_share(node: Node) -> None:
    node.looks((CERTAIN_S, {}), runtime=False)
    assert node.patches == []


def test_a_refused_write_is_repeated(node: Node) -> None:
    node.failures.append(ApiRefused("PATCH", 403, "old permissions"))
    node.looks((CERTAIN_S, {}), (1.0, {}))
    assert len(node.patches) == 1


@pytest.mark.parametrize(
    ("policy", "status", "may"),
    [
        ("Never", '{"phase":"Pending"}', True),
        ("Never", '{"phase":"Pending","containerStatuses":[{"state":{"waiting":{}}}]}', True),
        ("Always", '{"phase":"Pending"}', False),
        ("Never", '{"phase":"Running","containerStatuses":[{"state":{"running":{}}}]}', False),
        ("Never", '{"phase":"Pending","containerStatuses":[{"state":{"running":{}}}]}', False),
        ("Never", '{"phase":"Pending","containerStatuses":[{"state":{},"lastState":{"terminated":{}}}]}', False),
    ],
)
def test_only_a_pod_that_starts_once_and_has_not_run_may_be_stranded(policy: str, status: str, may: bool) -> None:
    text = f'{{"metadata":{{"uid":"u"}},"spec":{{"restartPolicy":"{policy}"}},"status":{status}}}'
    assert read_node_pod(decode_pod(text.encode())).may_strand is may
