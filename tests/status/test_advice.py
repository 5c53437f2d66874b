"""Each verdict has numbers, and the command that helps."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from milligpu.history.samples import WIDTH, HistoryLine
from milligpu.status.advice import Advice, Verdict, advise, needs_attention
from milligpu.status.funnel import funnel, stranded
from milligpu.status.picture import Picture
from milligpu.wire.status import AcceleratorStats, GpuStatus, ShareUsage

KEY = "pod/team/train/main/G1"


def share(milli: int = 500, limit: int = 500, utilization: float | None = 0.3) -> ShareUsage:
    return ShareUsage(
        AcceleratorStats("nvidia", "A100", "G1", 10 << 30),
        milli=milli,
        limit=limit,
        mib=10240,
        namespace="team",
        pod="train",
        container="main",
        utilization=utilization,
    )


GPU = GpuStatus(0, "G1", "A100", 1000, 40960, 500, 30720, node="n1")
PICTURE = Picture(1000.0, "c", cluster=True, software=False, gpus=[GPU], shares=[share()])


def history(key: str, *, seconds: float = 600, **columns: float) -> HistoryLine:
    fields = ("used", "share", "memory", "limit", "waiting", "throttled", "refused")
    if key.startswith("gpu/"):
        fields = ("used", "allocated", "memory", "power", "temperature", "throttled", "errors")
    rows = np.full((60, WIDTH), np.nan, np.float32)
    rows[:, 0] = seconds / 60
    for name, value in columns.items():
        rows[:, 2 + fields.index(name)] = value
    return HistoryLine(key, {}, np.arange(60, dtype=np.int64), rows)


def verdict_of_share(picture: Picture = PICTURE, **columns: float) -> Advice:
    return advise(picture, {KEY: history(KEY, **columns)})[-1]


def test_a_holder_that_does_nothing_is_idle_and_can_be_shrunk() -> None:
    found = verdict_of_share(used=0.0)
    assert found.verdict is Verdict.IDLE
    assert found.evidence == "holds 0.50 GPU and used at most 0.000 for 10 min"
    assert found.command == "kubectl milligpu resize pod/train -n team -c main -p 0.05"


def test_a_holder_that_its_limit_stops_is_starved() -> None:
    found = verdict_of_share(used=0.5, throttled=0.4)
    assert found.verdict is Verdict.STARVED
    assert "40%" in found.evidence
    assert found.command.endswith("-p 0.7")


def test_a_holder_of_twice_what_it_uses_is_oversized_and_the_share_that_fits_is_named() -> None:
    found = verdict_of_share(used=0.12)
    assert found.verdict is Verdict.OVERSIZED
    assert found.command.endswith("-p 0.15")


def test_a_holder_that_uses_its_share_is_healthy_and_needs_nothing() -> None:
    found = verdict_of_share(used=0.45, throttled=0.1)
    assert found.verdict is Verdict.HEALTHY
    assert found.command == ""
    assert needs_attention([found]) == []


def test_a_gpu_that_loses_time_to_reduced_clocks_is_throttled_and_says_why() -> None:
    slowed = replace(PICTURE, gpus=[msgspec.structs.replace(GPU, throttled={"power": 80.0, "thermal": 3.0})])
    line = history("gpu/G1", used=0.5, power=200.0, throttled=0.11)
    found = advise(slowed, {"gpu/G1": line})[0]
    assert found.verdict is Verdict.THROTTLED
    assert found.evidence == "lost 11% of the last 10 min to reduced clocks; most of it so far: power"
    assert needs_attention([found]) == [found]


def test_a_program_that_its_memory_limit_refuses_again_and_again_is_a_bad_task() -> None:
    found = verdict_of_share(used=0.4, refused=0.05)
    assert found.verdict is Verdict.BAD_TASK
    assert found.evidence == "its memory limit refused 30 allocations in 10 min: the program asks again and again"
    assert found.command == "kubectl milligpu resize pod/train -n team -c main -m 15Gi"
    assert verdict_of_share(used=0.4, refused=0.01).verdict is Verdict.HEALTHY


def test_errors_of_the_driver_are_a_bad_task_of_those_who_used_the_gpu() -> None:
    found = advise(PICTURE, {"gpu/G1": history("gpu/G1", used=0.5, errors=0.005)})[0]
    assert found.verdict is Verdict.BAD_TASK
    assert found.evidence == "the driver reported 3 errors (XID) in 10 min while it was used by team/train"


def test_without_enough_measurements_there_is_no_verdict() -> None:
    assert verdict_of_share(seconds=2, used=0.0).verdict is Verdict.UNKNOWN
    assert advise(PICTURE, {})[-1].verdict is Verdict.UNKNOWN


def test_the_holder_of_an_unhealthy_gpu_is_told_so() -> None:
    gpu = GpuStatus(0, "G1", "A100", 1000, 40960, 0, 0, node="n1", state="unhealthy", message="XID 79")
    found = advise(replace(PICTURE, gpus=[gpu]), {KEY: history(KEY, used=0.4)})
    assert [each.verdict for each in found] == [Verdict.UNHEALTHY, Verdict.UNHEALTHY]
    assert "XID 79" in found[0].evidence


def test_a_gpu_that_draws_power_for_no_work_is_inefficient() -> None:
    found = advise(PICTURE, {"gpu/G1": history("gpu/G1", used=0.0, power=180.0)})[0]
    assert found.verdict is Verdict.INEFFICIENT
    assert "180 W" in found.evidence


def test_the_funnel_counts_each_card_once_and_unmeasured_shares_apart() -> None:
    picture = replace(PICTURE, shares=[share(), share(200, utilization=0.0), share(100, utilization=None)])
    found = funnel(picture)
    assert (found.total, found.allocated, found.active) == (1.0, pytest.approx(0.8), 0.5)
    assert (found.effective, found.unmeasured) == (pytest.approx(0.3), 0.1)


def test_compute_without_memory_and_on_unhealthy_gpus_is_stranded() -> None:
    gpus = [
        GpuStatus(0, "G1", "A100", 1000, 40960, 400, 0),
        GpuStatus(1, "G2", "A100", 1000, 40960, 1000, 40960, state="unhealthy", message="XID 79"),
        GpuStatus(2, "G3", "A100", 1000, 40960, 1000, 40960),
    ]
    found = stranded(replace(PICTURE, gpus=gpus))
    assert [(each.reason, each.cards, list(each.gpus)) for each in found] == [
        ("unhealthy", 1.0, ["G2"]),
        ("no-memory", 0.4, ["G1"]),
    ]
