"""The scheduler evicts for agents: which pods, and how often it asks again."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from milligpu.kube.api import ApiClient, ApiRefused, ApiUnanswered
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.request import PodRef
from milligpu.scheduler.evictions import Evictions, reason_to_keep
from milligpu.wire.evictions import EvictionRequest, encode_evictions
from milligpu.wire.kubernetes import KubePod, decode_pod
from testing.controlplane.clock import ProcessLoop, VirtualClock

REQUEST = EvictionRequest(PodRef("default", "p", "uid-p"), "UnknownGPU")


def pod(**changes: Any) -> bytes:
    """A pod of a ReplicaSet that runs with a share on node n."""
    found: dict[str, Any] = {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": "uid-p",
            "ownerReferences": [{"uid": "o", "controller": True}],
            "deletionTimestamp": None,
        },
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {names.VGPU: "100"}}}]},
        "status": {"phase": "Pending"},
    }
    for path, value in changes.items():
        part, _, field = path.partition("_")
        found[part][field] = value
    return msgspec.json.encode(found)


def decoded(**changes: Any) -> KubePod:
    return decode_pod(pod(**changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"metadata_uid": "uid-of-another"}, "another pod has its name"),
        ({"spec_nodeName": "m"}, "not on this node"),
        ({"spec_nodeName": ""}, "not on this node"),
        ({"metadata_deletionTimestamp": "2026-01-01T00:00:00Z"}, "it ends already"),
        ({"status_phase": "Failed"}, "it ends already"),
        ({"metadata_ownerReferences": [{"uid": "o"}]}, "no controller"),
        ({"spec_containers": [{"name": "main"}]}, "requests no GPU"),
    ],
)
def test_only_a_replaceable_gpu_pod_of_the_same_node_is_evicted(changes: dict[str, Any], why: str) -> None:
    kept = reason_to_keep(decoded(**changes), REQUEST, "n")
    assert kept.endswith(why) if not why else why in kept


class Api:
    """Answers reads with the pod, and evictions as it is told."""

    def __init__(self, clock: VirtualClock, answer: Unavailable | None) -> None:
        self.clock, self.answer, self.body = clock, answer, pod()
        self.evictions: list[float] = []

    async def get(self, path: str) -> bytes:
        assert path == "/api/v1/namespaces/default/pods/p"
        return self.body

    async def send(self, method: str, path: str, body: Any, **_: Any) -> bytes:
        assert (method, path) == ("POST", "/api/v1/namespaces/default/pods/p/eviction")
        assert body["deleteOptions"] == {"preconditions": {"uid": "uid-p"}}
        self.evictions.append(self.clock.now)
        if self.answer is not None:
            raise self.answer
        return b"{}"


class Leader:
    """The evictions of a leader in virtual time, with one request of node n."""

    def __init__(self, answer: Unavailable | None = None) -> None:
        self.clock = VirtualClock()
        self.loop = ProcessLoop(self.clock)
        self.api = Api(self.clock, answer)
        self.leads = True
        self.evictions = Evictions(cast(ApiClient, self.api), lambda: self.leads, lambda: self.clock.now)
        self.loop.spawn(self.evictions.run())
        self.evictions.put("n", encode_evictions([REQUEST]))

    def run(self, seconds: float) -> int:
        """Let time pass; return how many evictions were sent meanwhile."""
        before = len(self.api.evictions)
        self.clock.run_until(self.clock.now + seconds)
        assert self.loop.errors == []
        return len(self.api.evictions) - before


NewLeader = Callable[..., Leader]


@pytest.fixture
def new_leader() -> Iterator[NewLeader]:
    """Starts leaders that end with the test."""
    made: list[Leader] = []

    def new(answer: Unavailable | None = None) -> Leader:
        made.append(Leader(answer))
        return made[-1]

    yield new
    for each in made:
        each.loop.kill()


BUDGET = ApiRefused("POST", 429, "Cannot evict pod as it would violate the pod's disruption budget")


@pytest.mark.parametrize("answer", [BUDGET, ApiUnanswered("POST")])
def test_a_refused_eviction_is_sent_again_less_and_less_often_until_it_succeeds(
    new_leader: NewLeader, answer: Unavailable
) -> None:
    leader = new_leader(answer)
    assert 2 <= leader.run(10) <= 6
    leader.run(600)
    assert 4 <= leader.run(600) <= 20  # at half a second it would be 1,200
    leader.api.answer = None
    assert leader.run(130) == 1
    assert leader.run(600) == 0


def test_an_eviction_is_logged_in_one_line_with_pod_node_and_reason(new_leader: NewLeader) -> None:
    with capture_logs() as lines:
        assert new_leader().run(10) == 1
    (line,) = lines
    assert list(line)[:4] == ["pod", "node", "reason", "uid"]
    assert (line["event"], line["pod"], line["node"]) == ("Evicted pod", "default/p", "n")
    assert (line["reason"], line["uid"]) == ("UnknownGPU", "uid-p")


def test_the_servers_wish_to_wait_is_honored(new_leader: NewLeader) -> None:
    leader = new_leader(ApiRefused("POST", 429, "later", 30.0))
    assert leader.run(29) == 1
    assert leader.run(3) == 1


@pytest.mark.parametrize("status", [404, 409])
def test_a_pod_that_is_gone_is_not_evicted_again(new_leader: NewLeader, status: int) -> None:
    leader = new_leader(ApiRefused("POST", status, "gone"))
    assert leader.run(600) == 1


def test_a_request_that_its_agent_withdrew_is_dropped(new_leader: NewLeader) -> None:
    leader = new_leader(BUDGET)
    assert leader.run(5) > 0
    leader.evictions.put("n", None)
    assert leader.run(600) == 0


def test_a_changed_list_does_not_start_over(new_leader: NewLeader) -> None:
    leader = new_leader()
    assert leader.run(5) == 1
    other = EvictionRequest(PodRef("default", "p", "uid-q"), "UnknownGPU")
    leader.evictions.put("n", encode_evictions([REQUEST, other]))
    assert leader.run(600) == 0  # the second one is a pod of the past


def test_an_instance_that_no_longer_leads_evicts_nothing(new_leader: NewLeader) -> None:
    leader = new_leader()
    leader.leads = False
    assert leader.run(60) == 0


def test_an_unreadable_list_evicts_nothing(new_leader: NewLeader) -> None:
    leader = new_leader(BUDGET)
    leader.evictions.put("n", '{"v":1,"pods":"all"}')
    assert leader.run(600) == 0
