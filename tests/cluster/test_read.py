"""Pods of one template are read once, and each is still its own."""

import json
from collections.abc import Mapping
from typing import Any

from milligpu import dialects
from milligpu.cluster.observed import ObservedPod
from milligpu.cluster.read import PodReader
from milligpu.model import names
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import PodRequest, Share
from milligpu.model.units import Mib, Milli
from milligpu.wire import kubernetes
from tests.cluster.objects import pod


class Reading:
    """A reader that counts."""

    def __init__(self) -> None:
        self.times = 0
        self.pods = PodReader(self._read)

    def _read(self, found: Mapping[str, Any]) -> PodRequest:
        self.times += 1
        return dialects.read_pod(found)

    def observed(self, found: dict[str, Any]) -> ObservedPod:
        return self.pods.read(kubernetes.decode_pod(json.dumps(found, separators=(",", ":")).encode()))


def with_token(name: str, milli: int, volume: str, **more: Any) -> dict[str, Any]:
    return pod(name, milli, volumes=[{"name": f"kube-api-access-{volume}"}], **more)


def test_pods_of_one_template_are_read_once_and_have_their_own_names() -> None:
    reading = Reading()
    first, second = (
        reading.observed(with_token(name, 300, volume)) for name, volume in (("a", "x1y2z"), ("b", "9q8w7"))
    )
    assert reading.times == 1
    assert (first.spec.pod.name, second.spec.pod.name) == ("a", "b")
    assert first.spec.request is not None
    assert second.spec.request is not None
    assert (first.spec.request.pod.uid, second.spec.request.pod.uid) == ("uid-a", "uid-b")
    assert first.spec.request.containers == second.spec.request.containers
    assert first.spec.shape == second.spec.shape


def test_a_pod_that_differs_from_its_template_is_read_again() -> None:
    reading = Reading()
    variants = [
        with_token("a", 300, "aaaaa"),
        with_token("b", 400, "aaaaa"),
        with_token("c", 300, "aaaaa", notes={names.REQUIRE: "model=T4"}),
        with_token("d", 300, "aaaaa", nodeSelector={"a": "b"}),
        with_token("e", 300, "aaaaa", priority=7),
    ]
    specs = [reading.observed(each).spec for each in variants]
    assert reading.times == len(variants)
    assert len({spec.shape for spec in specs[:4]}) == 4
    assert specs[4].priority == 7


def test_pods_of_an_invalid_template_keep_their_own_names() -> None:
    reading = Reading()
    specs = [reading.observed(with_token(name, 1500, "aaaaa")).spec for name in ("a", "b")]
    assert [spec.request for spec in specs] == [None, None]
    assert [spec.pod.name for spec in specs] == ["a", "b"]
    assert "1500" in specs[1].mistake


def test_a_changed_grant_is_noticed() -> None:
    reading = Reading()
    for gpu in ("GPU-n0-0", "GPU-n0-0", "GPU-n0-1"):
        grant = Grant("uid-a", "n0", {"main": (GpuShare(gpu, Share(Milli(300), Mib(4915), Milli(300))),)})
        assert reading.observed(pod("a", 300, grant=grant)).grant == grant
    another = Grant("uid-b", "n0", {"main": (GpuShare("GPU-n0-0", Share(Milli(300), Mib(4915), Milli(300))),)})
    assert reading.observed(pod("a", 300, grant=another)).grant is None


def bound(name: str, at: str, **more: Any) -> dict[str, Any]:
    share = GpuShare(f"GPU-{at}", Share(Milli(300), Mib(100), Milli(300)))
    return with_token(name, 300, "aaaaa", grant=Grant(f"uid-{name}", at, {"main": (share,)}), **more)


def test_bound_pods_of_one_template_are_read_once_on_whichever_nodes_they_are() -> None:
    reading = Reading()
    found = [reading.observed(bound(name, at)) for name, at in (("a", "n0"), ("b", "n1"), ("c", "n2"))]
    assert reading.times == 1
    assert [each.node for each in found] == ["n0", "n1", "n2"]
    assert [each.grant.gpus for each in found if each.grant] == [("GPU-n0",), ("GPU-n1",), ("GPU-n2",)]


def test_a_node_selector_that_looks_like_the_node_is_not_taken_for_it() -> None:
    reading = Reading()
    found = [
        reading.observed(bound(at, at, nodeSelector={"nodeName": selected}))
        for at, selected in (("n0", "n0"), ("n1", "n1"), ("n1", "n0"))
    ]
    assert [dict(each.spec.constraints.selector) for each in found[:2]] == [{"nodeName": "n0"}, {"nodeName": "n1"}]
