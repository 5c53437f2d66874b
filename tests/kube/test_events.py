"""Events: what is posted, what is a repetition, and what happens while the API server is away."""

import asyncio
import math
from typing import Any, cast

import pytest

from milligpu.kube import events
from milligpu.kube.api import ApiClient, ApiNotSent, ApiRefused
from milligpu.kube.events import EventRecorder, PodEvent, event_body
from milligpu.model.errors import Unavailable
from milligpu.model.reasons import EventReason
from milligpu.model.request import PodRef

POD = PodRef("default", "p", "u1")
AGAIN_S = 60.0


def waits(message: str, pod: PodRef = POD) -> PodEvent:
    return PodEvent(pod, EventReason.RESIZE_WAITS, "Resize", message)


class Api:
    """Takes events, or fails as told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.failures: list[Unavailable] = []

    async def send(self, method: str, path: str, body: dict[str, Any]) -> bytes:
        if self.failures:
            raise self.failures.pop(0)
        assert (method, path) == ("POST", "/apis/events.k8s.io/v1/namespaces/default/events")
        self.notes.append(body["note"])
        return b"{}"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def recorder(api: Api, clock: Clock) -> EventRecorder:
    return EventRecorder(cast(ApiClient, api), "milligpu.dev/test", "i" * 200, clock)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_EVERY_S", 0.0)
    monkeypatch.setattr(events, "_RETRY_S", 0.0)


def posted(api: Api, made: EventRecorder) -> list[str]:
    """What the API server has once the queue is empty."""

    async def run() -> None:
        task = asyncio.create_task(made.run())
        await asyncio.wait_for(made.drained(), 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return api.notes


def test_the_same_event_is_posted_once() -> None:
    api, clock = Api(), Clock()
    made = recorder(api, clock)
    assert made.record(waits("a"), topic="resize")
    clock.now = 1e6
    assert not made.record(waits("a"), topic="resize")
    assert posted(api, made) == ["a"]


def test_another_message_with_the_same_reason_is_posted_after_a_while() -> None:
    api, clock = Api(), Clock()
    made = recorder(api, clock)
    assert made.record(waits("a"), topic="resize", again_s=AGAIN_S)
    clock.now = AGAIN_S - 1
    assert not made.is_due(POD.uid, "resize", AGAIN_S)
    assert not made.record(waits("b"), topic="resize", again_s=AGAIN_S)
    clock.now = AGAIN_S
    assert made.is_due(POD.uid, "resize", AGAIN_S)
    assert made.record(waits("b"), topic="resize", again_s=AGAIN_S)


def test_another_reason_is_posted_at_once() -> None:
    made = recorder(Api(), Clock())
    assert made.record(waits("a"), topic="resize", again_s=AGAIN_S)
    resized = PodEvent(POD, EventReason.RESIZED, "Resize", "done", normal=True)
    assert made.record(resized, topic="resize")
    assert made.record(waits("a"), topic="resize", again_s=AGAIN_S)


def test_an_unchanged_message_counts_as_said_again() -> None:
    clock = Clock()
    made = recorder(Api(), clock)
    made.record(waits("a"), topic="resize", again_s=AGAIN_S)
    clock.now = AGAIN_S
    assert not made.record(waits("a"), topic="resize", again_s=AGAIN_S)
    assert not made.is_due(POD.uid, "resize", AGAIN_S)


def test_with_no_end_to_again_an_event_is_posted_once_until_it_is_forgotten() -> None:
    made = recorder(Api(), Clock())
    assert made.record(waits("a"), topic="t", again_s=math.inf)
    assert not made.record(waits("b"), topic="t", again_s=math.inf)
    made.forget(POD.uid, "t")
    assert made.record(waits("c"), topic="t", again_s=math.inf)
    made.keep(set())
    assert made.record(waits("d"), topic="t", again_s=math.inf)


def test_events_without_a_topic_are_all_posted() -> None:
    api = Api()
    made = recorder(api, Clock())
    assert made.record(waits("a"))
    assert made.record(waits("a"))
    assert posted(api, made) == ["a", "a"]


def test_while_the_api_server_is_away_events_wait_and_the_latest_of_a_topic_is_posted() -> None:
    api = Api()
    api.failures = [ApiNotSent("away"), ApiRefused("POST", 503, "starting"), ApiRefused("POST", 429, "slow down")]
    made = recorder(api, Clock())
    made.record(waits("a"), topic="resize")
    made.record(waits("b"), topic="resize")
    assert posted(api, made) == ["b"]


def test_an_event_that_is_refused_for_good_is_dropped() -> None:
    api = Api()
    api.failures = [ApiRefused("POST", 404, "namespaces not found")]
    made = recorder(api, Clock())
    made.record(waits("a"))
    made.record(waits("b"))
    assert posted(api, made) == ["b"]


def test_the_queue_drops_its_oldest_event_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUEUE_MAX", 2)
    api = Api()
    made = recorder(api, Clock())
    for message in "abc":
        made.record(waits(message))
    assert posted(api, made) == ["b", "c"]


def test_texts_are_cut_to_what_kubernetes_accepts() -> None:
    body = event_body(waits("x" * 3000, PodRef("default", "n" * 253, "u1")), "milligpu.dev/test", "i")
    note, name = body["note"], cast(dict[str, str], body["metadata"])["generateName"]
    assert isinstance(note, str)
    assert len(note) == 1024
    assert len(name) == 201
