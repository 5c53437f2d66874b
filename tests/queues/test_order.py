"""Guarantees come before weights, users by what they had, and a user's own pods in their order."""

import itertools

from milligpu.model.gpu_queue import GpuQueue, GpuQueues, QueueOrder, Quota
from milligpu.model.request import ContainerRequest, PodRef, PodRequest, ShareRequest
from milligpu.model.units import Mib, Milli
from milligpu.queues.order import QueuedPod, WaitingLines

_numbers = itertools.count()


def pod(queue: str, user: str = "ann", milli: int = 500, arrived: float = 0.0) -> QueuedPod:
    name = f"pod-{next(_numbers):04d}"
    share = ContainerRequest("main", ShareRequest(1, Milli(milli)))
    return QueuedPod(PodRequest(PodRef("n", name, name), (share,)), queue, user, arrived, Milli(milli), Mib(0))


def lines(*queues: GpuQueue) -> WaitingLines:
    return WaitingLines(GpuQueues(queues))


def gpus(amount: float) -> Quota:
    return Quota(Milli(round(amount * 1000)), None)


def turn(waiting: WaitingLines, *heads: QueuedPod) -> str:
    found = waiting.next_queue({head.queue: head for head in heads})
    assert found is not None
    return found.name


def test_a_queue_within_its_guarantee_comes_before_one_that_wants_more_than_its_own() -> None:
    waiting = lines(GpuQueue("a", guarantee=gpus(1)), GpuQueue("b", guarantee=gpus(1), weight=100))
    waiting.started(pod("b", milli=1000), 0.0)
    assert turn(waiting, pod("a"), pod("b")) == "a"


def test_beyond_the_guarantees_weight_decides() -> None:
    waiting = lines(GpuQueue("a"), GpuQueue("b", weight=3))
    got: list[str] = []
    for _ in range(8):
        got.append(turn(waiting, pod("a"), pod("b")))
        waiting.started(pod(got[-1]), 0.0)
    assert (got.count("a"), got.count("b")) == (2, 6)


def test_a_tree_is_decided_level_by_level() -> None:
    waiting = lines(
        GpuQueue("x", guarantee=gpus(2)),
        GpuQueue("x1", "x", guarantee=gpus(1)),
        GpuQueue("x2", "x"),
        GpuQueue("y", guarantee=gpus(1)),
    )
    waiting.started(pod("x1", milli=1000), 0.0)
    waiting.started(pod("y", milli=1000), 0.0)
    # x has half of its guarantee left, though x2 itself has none.
    assert turn(waiting, pod("x2"), pod("y")) == "x2"


def test_in_a_fair_queue_comes_next_who_had_least_and_in_a_fifo_queue_who_waited_longest() -> None:
    for order, first in ((QueueOrder.FAIR, "bob"), (QueueOrder.FIFO, "ann")):
        queue = GpuQueue("a", order=order)
        waiting = lines(queue)
        waiting.started(pod("a", "ann"), 0.0)
        waiting.add(pod("a", "ann", arrived=1.0))
        waiting.add(pod("a", "bob", arrived=2.0))
        assert waiting.line(queue, 3.0)[0].user == first


def test_in_a_fair_queue_users_take_turns_with_what_they_ask_for() -> None:
    queue = GpuQueue("a")
    waiting = lines(queue)
    for number, (user, milli) in enumerate((("ann", 600), ("ann", 600), ("bob", 300), ("bob", 300), ("bob", 300))):
        waiting.add(pod("a", user, milli, arrived=float(number)))
    assert [each.user for each in waiting.line(queue, 9.0)] == ["ann", "bob", "bob", "ann", "bob"]


def test_a_pod_that_waits_no_longer_is_not_in_line() -> None:
    queue = GpuQueue("a")
    waiting = lines(queue)
    one, two = pod("a", "ann", arrived=1.0), pod("a", "ann", arrived=2.0)
    waiting.add(one)
    waiting.add(two)
    assert waiting.line(queue, 3.0) == [one, two]
    waiting.remove(one)
    assert waiting.line(queue, 3.0) == [two]
    waiting.remove(two)
    assert waiting.line(queue, 3.0) == []


def test_a_ceiling_holds_for_the_queue_and_for_all_above_it() -> None:
    waiting = lines(GpuQueue("x", ceiling=gpus(1)), GpuQueue("x1", "x"), GpuQueue("x2", "x", ceiling=gpus(0.5)))
    assert waiting.over_ceiling(pod("x2", milli=600)) == waiting.queues["x2"]
    waiting.started(pod("x1", milli=800), 0.0)
    assert waiting.over_ceiling(pod("x2", milli=300)) == waiting.queues["x"]
    assert waiting.over_ceiling(pod("x2", milli=200)) is None


def test_memory_counts_like_compute() -> None:
    waiting = lines(GpuQueue("a", guarantee=Quota(Milli(1000), Mib(100)), ceiling=Quota(None, Mib(200))))
    first = QueuedPod(pod("a").request, "a", "ann", 0.0, Milli(100), Mib(150))
    assert not waiting.within_guarantee(first)
    waiting.started(first, 0.0)
    assert waiting.over_ceiling(first) == waiting.queues["a"]
    waiting.ended(first, 1.0)
    assert waiting.over_ceiling(first) is None
