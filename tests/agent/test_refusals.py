"""Containers that were refused: their pods are listed for eviction when it is time, and no longer than needed."""

from typing import Any, cast

from milligpu.agent.attach_plan import NodePod, RefusedAttachment
from milligpu.agent.grant_check import GrantProblem
from milligpu.agent.refusals import RefusalReporter
from milligpu.kube.events import EventRecorder
from milligpu.model.reasons import AttachReason
from milligpu.model.request import ContainerRef, PodRef
from milligpu.wire.evictions import EvictionRequest


class Events:
    """Takes no events."""

    def keep(self, uids: object) -> None: ...


class Node:
    """A reporter in time that a test sets, and how often it had other pods to evict."""

    def __init__(self) -> None:
        self.now, self.changes = 0.0, 0
        self.reporter = RefusalReporter(cast(EventRecorder, Events()), lambda: self.now, 60.0, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def refuse(self, *pods: NodePod, reason: AttachReason = AttachReason.UNKNOWN_GPU) -> tuple[Any, ...]:
        """Refuse two containers of each pod; return what is to be evicted."""
        refused = [
            RefusedAttachment(f"{pod.ref.name}-{name}", ContainerRef(pod.ref, name), GrantProblem(reason, "m"))
            for pod in pods
            for name in ("a", "b")
        ]
        self.reporter.update(refused, {pod.ref.uid: pod for pod in pods})
        return self.reporter.evictions


def pod(name: str, *, owned: bool = True) -> NodePod:
    return NodePod(PodRef("default", name, f"uid-{name}"), kinds={}, owned=owned)


def test_a_pod_that_stays_refused_is_listed_once_if_it_has_a_controller() -> None:
    node = Node()
    assert node.refuse(pod("p"), pod("bare", owned=False)) == ()
    node.now = 59.0
    assert node.refuse(pod("p"), pod("bare", owned=False)) == ()
    node.now = 60.0
    wanted = (EvictionRequest(PodRef("default", "p", "uid-p"), "UnknownGPU"),)
    assert node.refuse(pod("p"), pod("bare", owned=False)) == wanted
    assert node.refuse(pod("p"), pod("bare", owned=False)) == wanted
    assert node.changes == 1


def test_a_pod_that_started_or_is_gone_leaves_the_list() -> None:
    node = Node()
    node.refuse(pod("p"))
    node.now = 61.0
    assert len(node.refuse(pod("p"))) == 1
    assert node.refuse() == ()
    assert node.changes == 2


def test_another_reason_starts_the_time_again() -> None:
    node = Node()
    node.refuse(pod("p"))
    node.now = 50.0
    node.refuse(pod("p"), reason=AttachReason.OVERCOMMIT)
    node.now = 100.0
    assert node.refuse(pod("p"), reason=AttachReason.OVERCOMMIT) == ()
    node.now = 110.0
    assert len(node.refuse(pod("p"), reason=AttachReason.OVERCOMMIT)) == 1
