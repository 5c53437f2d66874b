"""What the leader writes into the status of queues, and how often."""

import asyncio
from typing import Any, cast

import msgspec

from milligpu.kube.api import ApiClient
from milligpu.scheduler.queue_status import WRITE_S, QueueStatusWriter
from milligpu.wire.kubernetes import KubeGpuQueue
from tests.queues.test_cluster_lines import World

QUEUE = b'{"metadata":{"name":"a","uid":"u","generation":2},"spec":{}}'


class Api:
    """Keeps the queue's object, and every write to it."""

    def __init__(self) -> None:
        self.found = msgspec.json.decode(QUEUE, type=KubeGpuQueue)
        self.writes: list[dict[str, Any]] = []

    async def send(self, method: str, path: str, body: object, **_: object) -> bytes:
        assert (method, path) == ("PATCH", "/apis/milligpu.dev/v1alpha1/gpuqueues/a/status")
        patch: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
        self.writes.append(patch["status"])
        whole: dict[str, Any] = {
            "metadata": msgspec.to_builtins(self.found.metadata),
            "spec": {},
            "status": patch["status"],
        }
        self.found = msgspec.json.decode(msgspec.json.encode(whole), type=KubeGpuQueue)
        return b"{}"


class Writing:
    """A writer, whose rounds are made one by one."""

    def __init__(self, problems: dict[str, str] | None = None) -> None:
        self.world, self.api = World(), Api()
        self.writer = QueueStatusWriter(cast(ApiClient, self.api), lambda: self.world.now)
        self._problems = problems or {}

    def round(self) -> int:
        """Write what is to be written; return how many writes there were."""
        before = len(self.api.writes)
        self.writer.learn([self.api.found], self._problems)
        self.writer.put(self.world.view())

        async def once() -> None:
            task = asyncio.create_task(self.writer.run())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()

        asyncio.run(once())
        return len(self.api.writes) - before


def test_usage_is_written_once_a_minute_while_a_gpu_is_held() -> None:
    here = Writing()
    here.world.put("one", 500, gates=(), user="ann")
    here.world.put("two", 500, user="bob")
    assert here.round() == 1
    status = here.api.writes[0]
    assert (status["heldMilli"], status["heldMib"], status["waiting"]) == (500, 8192, 1)
    assert (status["conditions"][0]["status"], status["conditions"][0]["reason"]) == ("True", "Usable")
    assert [each["name"] for each in status["users"]] == ["ann"]
    here.world.now += 1
    assert here.round() == 0
    here.world.now += WRITE_S
    assert here.round() == 1
    assert here.api.writes[1]["users"][0]["milli"] > 0


def test_an_idle_queue_is_written_once() -> None:
    here = Writing()
    assert here.round() == 1
    here.world.now += 10 * WRITE_S
    assert here.round() == 0


def test_the_condition_says_what_is_wrong_with_a_queue() -> None:
    here = Writing({"a": "its parent is gone"})
    assert here.round() == 1
    (condition,) = here.api.writes[0]["conditions"]
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "False",
        "InvalidQueue",
        "its parent is gone",
    )
