"""What the annotations of a pod change: from the manifest to the GPU, and to the limits page."""

from typing import Any

import pytest

from milligpu import dialects
from milligpu.model import names
from milligpu.model.grant import Grant, NoFit
from milligpu.model.overheads import GpuOverheads
from milligpu.model.request import PodRequest
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.tenancy.tenant import limits_page
from milligpu.tenancy.time_slots import TimeSlot
from tests.placement.clusters import node


def read(name: str, notes: dict[str, str], milli: int = 100) -> PodRequest:
    main: dict[str, Any] = {"name": "main", "resources": {"limits": {names.VGPU: str(milli)}}}
    metadata = {"name": name, "namespace": "default", "uid": name, "annotations": notes}
    return dialects.read_pod({"metadata": metadata, "spec": {"containers": [main]}})


def placed(*notes: dict[str, str], cards: int = 2) -> list[str | None]:
    """The GPU of each pod, one after the other; None for one that waits."""
    placer, found = Placer(Snapshot.of([node("a", cards)])), list[str | None]()
    for number, each in enumerate(notes):
        request = read(f"p{number}", each)
        answer = placer.decide(request)
        if isinstance(answer, Grant):
            placer.commit(request, answer)
        found.append(None if isinstance(answer, NoFit) else answer.gpus[0])
    return found


@pytest.mark.parametrize(("strategy", "gpus"), [("best-fit", 1), ("packing", 1), ("spread", 2)])
def test_the_strategy_packs_or_spreads(strategy: str, gpus: int) -> None:
    assert len(set(placed(*[{names.STRATEGY: strategy}] * 2))) == gpus


def test_affinity_brings_pods_to_one_gpu() -> None:
    first, other, second = placed(
        {names.AFFINITY: "team"}, {names.STRATEGY: "spread"}, {names.AFFINITY: "team", names.STRATEGY: "spread"}
    )
    assert first == second != other


def test_anti_affinity_keeps_pods_apart() -> None:
    first, second, third = placed(*[{names.ANTI_AFFINITY: "noisy"}] * 3)
    assert first != second
    assert third is None


def test_exclusion_keeps_others_off_the_gpu() -> None:
    mine, theirs, plain, again = placed({names.EXCLUSION: "a"}, {names.EXCLUSION: "b"}, {}, {names.EXCLUSION: "a"})
    assert mine != theirs
    assert plain is None
    assert again == mine


@pytest.mark.parametrize("priority", [0, 7])
def test_the_priority_reaches_the_page_that_the_arbiter_reads(priority: int) -> None:
    place = node("a", 1)
    request = read("p", {names.PRIORITY: str(priority)})
    answer = Placer(Snapshot.of([place])).decide(request)
    assert isinstance(answer, Grant)
    gpus = {gpu.uuid: gpu for gpu in place.gpus}
    slots, contexts = dict.fromkeys(gpus, TimeSlot(0, 1)), dict.fromkeys(gpus, GpuOverheads(0))
    page = limits_page(answer, answer.containers["main"], gpus, slots, contexts)
    assert page.priority == priority
