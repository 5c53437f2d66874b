"""Pods of one template are read once, and each is still its own."""

import json
from collections.abc import Mapping
from typing import Any

from milligpu import dialects
from milligpu.kube import objects
from milligpu.model import names
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import PodRequest
from milligpu.model.units import Mib, Milli
from milligpu.scheduler.sight import PodReader, PodSight
from tests.scheduler.objects import pod


class Reading:
    """A reader that counts."""

    def __init__(self) -> None:
        self.times = 0
        self.pods = PodReader(self._read)

    def _read(self, found: Mapping[str, Any]) -> PodRequest:
        self.times += 1
        return dialects.read(found)

    def sight(self, found: dict[str, Any]) -> PodSight:
        return self.pods.sight(objects.decode_pod(json.dumps(found, separators=(",", ":")).encode()))


def with_token(name: str, milli: int, volume: str, **more: Any) -> dict[str, Any]:
    return pod(name, milli, volumes=[{"name": f"kube-api-access-{volume}"}], **more)


def test_pods_of_one_template_are_read_once_and_have_their_own_names() -> None:
    reading = Reading()
    first, second = (
        reading.sight(with_token(name, 300, volume)) for name, volume in (("a", "x1y2z"), ("b", "9q8w7"))
    )
    assert reading.times == 1
    assert (first.wish.pod.name, second.wish.pod.name) == ("a", "b")
    assert first.wish.request is not None
    assert second.wish.request is not None
    assert (first.wish.request.pod.uid, second.wish.request.pod.uid) == ("uid-a", "uid-b")
    assert first.wish.request.containers == second.wish.request.containers
    assert first.wish.shape == second.wish.shape


def test_whatever_is_written_differently_is_read_again() -> None:
    reading = Reading()
    variants = [
        with_token("a", 300, "aaaaa"),
        with_token("b", 400, "aaaaa"),
        with_token("c", 300, "aaaaa", notes={names.REQUIRE: "model=T4"}),
        with_token("d", 300, "aaaaa", nodeSelector={"a": "b"}),
        with_token("e", 300, "aaaaa", priority=7),
    ]
    wishes = [reading.sight(each).wish for each in variants]
    assert reading.times == len(variants)
    assert len({wish.shape for wish in wishes[:4]}) == 4
    assert wishes[4].priority == 7


def test_a_mistake_is_each_pods_own() -> None:
    reading = Reading()
    wishes = [reading.sight(with_token(name, 1500, "aaaaa")).wish for name in ("a", "b")]
    assert [wish.request for wish in wishes] == [None, None]
    assert [wish.pod.name for wish in wishes] == ["a", "b"]
    assert "1500" in wishes[1].mistake


def test_a_changed_grant_is_noticed() -> None:
    reading = Reading()
    for gpu in ("GPU-n0-0", "GPU-n0-0", "GPU-n0-1"):
        grant = Grant("uid-a", "n0", {"main": (GpuShare(gpu, Milli(300), Mib(4915), Milli(300)),)})
        assert reading.sight(pod("a", 300, grant=grant)).grant == grant
    another = Grant("uid-b", "n0", {"main": (GpuShare("GPU-n0-0", Milli(300), Mib(4915), Milli(300)),)})
    assert reading.sight(pod("a", 300, grant=another)).grant is None
