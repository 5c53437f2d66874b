"""Queues that contradict each other, or themselves, are refused with the field that is wrong."""

import pytest

from milligpu.model.errors import BadRequest
from milligpu.model.gpu_queue import (
    NO_QUOTA,
    UNLIMITED,
    GpuQueue,
    GpuQueues,
    QueueOrder,
    Quota,
    parse_order,
    parse_quota,
    usable_queues,
)
from milligpu.model.units import Mib, Milli


def milli(amount: int) -> Quota:
    return Quota(Milli(amount), None)


def test_a_quota_is_read_in_milli_and_with_a_unit_of_memory() -> None:
    assert parse_quota("spec.ceiling", {"milli": 4000, "memory": "160Gi"}, UNLIMITED) == Quota(
        Milli(4000), Mib(163840)
    )
    assert parse_quota("spec.ceiling", {"milli": "4k"}, UNLIMITED) == Quota(Milli(4000), None)
    assert parse_quota("spec.guarantee", {"memory": "1Ti"}, NO_QUOTA) == Quota(Milli(0), Mib(1 << 20))
    assert parse_quota("spec.guarantee", None, NO_QUOTA) == NO_QUOTA


def test_a_quota_may_be_larger_than_any_gpu() -> None:
    assert parse_quota("spec.guarantee", {"memory": "320Ti"}, NO_QUOTA).mib == 320 << 20


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"milli": -1}, "spec.guarantee.milli"),
        ({"milli": "0.5"}, "spec.guarantee.milli"),
        ({"memory": "much"}, "spec.guarantee.memory"),
        ({"gpus": 3}, "spec.guarantee.gpus"),
    ],
)
def test_a_quota_that_cannot_be_read_is_refused_with_its_field(value: dict[str, object], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_quota("spec.guarantee", value, NO_QUOTA)
    assert refused.value.field == field


def test_an_unknown_order_is_refused_with_those_that_exist() -> None:
    assert parse_order("spec.order", "fifo") is QueueOrder.FIFO
    with pytest.raises(BadRequest, match="spec.order: invalid value 'lifo': must be fifo or fair"):
        parse_order("spec.order", "lifo")


@pytest.mark.parametrize(
    ("queues", "message"),
    [
        ([GpuQueue("a", parent="b")], "queue a: spec.parent: invalid value 'b': must be the name of a GpuQueue"),
        (
            [GpuQueue("a", parent="b"), GpuQueue("b", parent="a")],
            "queue a: spec.parent: invalid value 'b': must be a queue that is not below a: a -> b -> a",
        ),
        (
            [GpuQueue("a", guarantee=milli(3000), ceiling=milli(2000))],
            "queue a: spec.guarantee: invalid value '3 GPU': must be at most 2 GPU",
        ),
        (
            [
                GpuQueue("lab", guarantee=milli(2000)),
                GpuQueue("a", "lab", guarantee=milli(1500)),
                GpuQueue("b", "lab", guarantee=milli(1000)),
            ],
            "queues a, b: spec.guarantee: invalid value '2.5 GPU together': must be at most 2 GPU, the guarantee "
            "of lab",
        ),
        (
            [GpuQueue("lab", ceiling=milli(2000)), GpuQueue("a", "lab", ceiling=milli(3000))],
            "queue a: spec.ceiling: invalid value '3 GPU': must be at most 2 GPU, the ceiling of lab",
        ),
    ],
)
def test_queues_that_contradict_each_other_are_refused(queues: list[GpuQueue], message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        GpuQueues(queues)
    assert refused.value.message == message


def test_only_queues_without_queues_below_them_take_pods() -> None:
    queues = GpuQueues([GpuQueue("lab"), GpuQueue("a", "lab"), GpuQueue("b", "lab"), GpuQueue("c")])
    assert [each.name for each in queues.leaves] == ["a", "b", "c"]
    assert [each.name for each in queues.line_of("a")] == ["a", "lab"]


def test_queues_that_contradict_others_are_left_out_with_why() -> None:
    child, parent = GpuQueue("child", "parent", Quota(Milli(500))), GpuQueue("parent", guarantee=Quota(Milli(1000)))
    orphan, first, second = (
        GpuQueue("orphan", "gone"),
        GpuQueue("x", namespaces=("n",)),
        GpuQueue("y", namespaces=("n",)),
    )
    queues, problems = usable_queues([child, parent, orphan, first, second])
    assert [each.name for each in queues] == ["child", "parent", "x"]
    assert problems.keys() == {"orphan", "y"}
    assert "a namespace of one queue only: it is one of x" in problems["y"]
    assert usable_queues([child, parent])[1] == {}


def test_the_queue_of_a_pod_is_named_by_label_or_by_namespace() -> None:
    queues = GpuQueues([GpuQueue("mine", namespaces=("n",)), GpuQueue("open")])
    assert queues.queue_of("n", None) == "mine"
    assert queues.queue_of("m", None) is None
    assert queues.queue_of("m", "open") == "open"
