"""Modeled time: a launch takes as long as on the modeled GPU, however busy the CPU is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.softgpu.conftest import Softgpu

pytestmark = pytest.mark.alone

Client = Callable[..., dict[str, Any]]
OVERHEAD = 0.002
"""Milliseconds that the modeled GPU needs to start a kernel."""


@pytest.fixture(scope="module")
def paced(client: Client) -> dict[str, Any]:
    return client("paced.py", "--speed", "1", "--memory", "2Gi")


def near(expected: float) -> Any:
    return pytest.approx(expected, rel=0.001)


def test_queued_kernels_take_exactly_their_modeled_time(paced: dict[str, Any]) -> None:
    assert paced["alone"]["naps"] == [near(3 + OVERHEAD)] * 20


def test_a_loop_takes_time_in_proportion_to_its_length(paced: dict[str, Any]) -> None:
    small, large = paced["alone"]["small"], paced["alone"]["large"]
    assert large / small == pytest.approx(10, rel=0.05)


def test_a_kernels_clocks_follow_modeled_time(paced: dict[str, Any]) -> None:
    alone = paced["alone"]
    assert alone["timer"] == pytest.approx(5e6, rel=0.001)
    assert alone["cycles"] == pytest.approx(5e6 * 1.695, rel=0.001)
    assert alone["spins"] == [pytest.approx(5, rel=0.01)] * 5


def test_two_processes_alternate_every_two_milliseconds(paced: dict[str, Any]) -> None:
    for gaps in paced["together"]["gaps"]:
        alone = [gap for gap in gaps if gap == pytest.approx(1 + OVERHEAD, abs=0.01)]
        shared = [gap for gap in gaps if gap == pytest.approx(3 + OVERHEAD, abs=0.01)]
        # One process may start before the other, and the first time slice may be cut short.
        assert len(shared) >= 15
        assert len(alone) + len(shared) >= len(gaps) - 5


def test_the_gpu_time_of_processes_adds_up(paced: dict[str, Any]) -> None:
    assert paced["together"]["busy"] == [near(61 * (1 + OVERHEAD))] * 2


def test_a_killed_process_frees_the_gpu_for_others(paced: dict[str, Any]) -> None:
    assert paced["killed"]["gaps"] == [near(4 + OVERHEAD)] * 10


def test_on_a_busy_cpu_each_launch_takes_its_modeled_time_or_is_counted_as_late(paced: dict[str, Any]) -> None:
    exact = near(5 + OVERHEAD)
    off = [length for length in paced["burning"] if length != exact]
    assert len(paced["burning"]) == 20
    assert len(off) <= paced["late"], "a launch that was in time has exactly its modeled time"
    assert all(length > 5 for length in off), "the CPU can make a launch longer, never shorter"


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "fast"])
def test_an_invalid_speed_is_refused(softgpu: Softgpu, value: str) -> None:
    done = softgpu("exec", "--speed", value, "--", "true")
    assert done.returncode == 2
    assert value in done.stderr


def test_every_client_computes_the_same_in_modeled_time(client: Client) -> None:
    results = client("kernels.py", "--speed", "1000")
    assert {name: result for name, result in results.items() if result != "ok"} == {}
    results = client("streams.py", "--speed", "1", "--devices", "2", "--memory", "1Gi")
    assert {name for name, good in results.items() if not good} == set()
