"""When the startup taint of a new node is removed, and what stays."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from milligpu.cluster.read import NodeReader
from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib
from milligpu.scheduler import startup_taints
from milligpu.scheduler.startup_taints import StartupTaints, without_startup_taint
from milligpu.wire.inventory import encode_inventory
from milligpu.wire.kubernetes import KubeNode

OTHER = {"key": "dedicated", "value": "gpus", "effect": "NoSchedule"}
OURS = {"key": names.AGENT_NOT_READY, "effect": "NoSchedule"}
INVENTORY = encode_inventory([Gpu("GPU-1", "A100", Mib(40960))])


def node(*, slots: str | None, taints: list[dict[str, str]]) -> dict[str, Any]:
    """A node with an inventory; `slots` is what its kubelet reports as allocatable."""
    meta = {"name": "n1", "uid": "u1", "resourceVersion": "7", "annotations": {names.INVENTORY: INVENTORY}}
    allocatable = {"cpu": "8", "memory": "8Gi"} | ({} if slots is None else {names.VGPU: slots})
    return {"metadata": meta, "spec": {"taints": taints}, "status": {"allocatable": allocatable}}


class Server:
    """An API server with one node, which refuses some writes at first."""

    def __init__(self, found: dict[str, Any], *, conflicts: int = 0, leads: bool = True) -> None:
        self.node = found
        self.conflicts = conflicts
        self.sent: list[dict[str, Any]] = []
        self.writer = StartupTaints(cast(ApiClient, self), lambda: leads)

    async def get(self, path: str) -> bytes:
        assert path == "/api/v1/nodes/n1"
        return msgspec.json.encode(self.node)

    async def send(self, method: str, path: str, body: dict[str, Any], **_more: object) -> bytes:
        assert (method, path) == ("PATCH", "/api/v1/nodes/n1")
        if self.conflicts:
            self.conflicts -= 1
            raise ApiRefused("PATCH node", 409, "the object has been modified")
        self.sent.append(body)
        return b"{}"

    def run(self) -> list[dict[str, Any]]:
        """Show the node to the leader, and return what it writes."""

        async def follow() -> None:
            observed = NodeReader().read(msgspec.convert(self.node, KubeNode))
            assert observed is not None
            self.writer.put(observed)
            task = asyncio.create_task(self.writer.run())
            for _ in range(50):
                await asyncio.sleep(0)
            task.cancel()

        asyncio.run(follow())
        return self.sent


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_taints, "_RETRY_S", 0.0)


def test_only_our_taint_is_removed_and_only_from_the_version_that_was_read() -> None:
    wanted = {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [OTHER]}}
    assert Server(node(slots="1000", taints=[OURS, OTHER])).run() == [wanted]
    assert without_startup_taint(node(slots="1000", taints=[OTHER])) is None


@pytest.mark.parametrize("slots", [None, "0"])
def test_the_taint_stays_until_the_kubelet_reports_the_agents_slots(slots: str | None) -> None:
    assert Server(node(slots=slots, taints=[OURS])).run() == []


def test_a_conflict_with_another_writer_is_tried_again() -> None:
    assert len(Server(node(slots="1000", taints=[OURS]), conflicts=2).run()) == 1


def test_an_instance_that_no_longer_leads_writes_nothing() -> None:
    assert Server(node(slots="1000", taints=[OURS]), leads=False).run() == []
