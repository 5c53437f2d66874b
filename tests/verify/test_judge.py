"""Readings become results: exactly the reading that is wrong turns its line."""

import pytest

from milligpu.checks.result import CheckLevel, CheckOutcome, CheckResult
from milligpu.measure.share_windows import BusySample
from milligpu.measure.testbed import LoadReport
from milligpu.model.units import BYTES_PER_MIB
from milligpu.verify import judge
from milligpu.verify.compute import common_samples
from milligpu.verify.judge import FrameworkReadings, LibraryFile

MIB = BYTES_PER_MIB
SECOND = 1_000_000_000
LIMITS, DRIVER, COMPAT = (
    LibraryFile(1, 10),
    LibraryFile(1, 11, "libcuda.so.570"),
    LibraryFile(1, 12, "libcuda.so.535"),
)
ROUTES = {"linear": (1900 * MIB, 2), "managed": (1900 * MIB, 2)}


def _failed(result: CheckResult) -> bool:
    return result.result is CheckOutcome.FAILED


def _samples(*shares: float, seconds: int = 13, speed: float = 1.0) -> list[BusySample]:
    """Ten samples each second of tenants that get these percentages of a GPU."""
    return [
        BusySample(
            at * SECOND // 10, {number: round(at * 1000 * share * speed) for number, share in enumerate(shares)}
        )
        for at in range(seconds * 10)
    ]


@pytest.mark.parametrize("speed", [1.0, 0.1])
def test_shares_are_of_the_work_that_ended_however_fast_the_gpu_was(speed: float) -> None:
    result = judge.judge_shares("x", (70, 30), _samples(70, 30, speed=speed))
    assert result.result is CheckOutcome.PASSED
    assert result.figures == {
        "tenant_1_percent": pytest.approx(70, abs=0.1),
        "tenant_2_percent": pytest.approx(30, abs=0.1),
        "error_points": pytest.approx(0, abs=0.1),
    }


def test_a_share_that_is_off_by_20_points_fails() -> None:
    result = judge.judge_shares("x", (70, 30), _samples(50, 50))
    assert _failed(result)
    assert result.is_error
    assert result.figures["error_points"] == pytest.approx(20, abs=0.1)
    assert "measured 50.0 / 50.0" in result.message


def test_a_share_that_is_off_in_one_window_only_fails() -> None:
    # On average over the whole run each gets its share.
    early, later = _samples(66, 27, 7, seconds=26), _samples(34, 33, 33, seconds=26)
    last = early[129].busy
    first = later[129].busy
    mixed = early[:130] + [
        BusySample(each.time, {key: last[key] + each.busy[key] - first[key] for key in last})
        for each in later[130:]
    ]
    assert _failed(judge.judge_shares("x", (50, 30, 20), mixed))


def test_no_work_is_no_share() -> None:
    assert _failed(judge.judge_shares("x", (70, 30), _samples(0, 0)))
    assert _failed(judge.judge_shares("x", (70, 30), []))


def test_samples_of_programs_are_compared_at_the_same_moments() -> None:
    def report(start: int, rate: int) -> LoadReport:
        samples = [(start + at * SECOND // 10, at * rate) for at in range(60)]
        return LoadReport(1, 6.0, 0, 0, 0, samples=samples)

    found = common_samples([report(0, 70), report(SECOND // 20, 30)])
    first, last = found[0], found[-1]
    assert first.time >= SECOND + SECOND // 20
    done = [last.busy[number] - first.busy[number] for number in (0, 1)]
    assert done[0] / sum(done) == pytest.approx(0.7, abs=0.001)
    assert common_samples([LoadReport(0, 0, 0, 0, 0)]) == []


@pytest.mark.parametrize(("limited", "fails"), [(2000, False), (2300, False), (2301, True), (9000, True)])
def test_a_launch_may_cost_300_ns_more(limited: float, fails: bool) -> None:
    assert _failed(judge.judge_launches("x", 2000, limited)) is fails


@pytest.mark.parametrize(
    ("pauses", "median", "level"),
    [(500, 2e6, None), (3, 2e6, CheckLevel.ERROR), (500, 6e6, CheckLevel.WARNING), (500, 3e5, CheckLevel.WARNING)],
)
def test_a_slice_that_is_not_about_2_ms_is_a_warning(pauses: int, median: float, level: CheckLevel | None) -> None:
    result = judge.judge_slices("x", pauses, median)
    assert (result.level if _failed(result) else None) is level


@pytest.mark.parametrize(
    ("routes", "driver", "said"),
    [
        (ROUTES, 2040 * MIB, ""),
        (ROUTES, None, ""),
        ({**ROUTES, "managed": (4096 * MIB, 2)}, None, "4,096 MiB could be allocated (managed)"),
        (ROUTES, 2600 * MIB, "the driver counts 2,600 MiB"),
        ({**ROUTES, "linear": (1900 * MIB, 700)}, None, "linear: CUDA error 700"),
        ({**ROUTES, "linear": (64 * MIB, 2)}, None, "less than a quarter"),
    ],
)
def test_a_memory_limit_holds_on_every_route_and_for_the_driver(
    routes: dict[str, tuple[int, int]], driver: int | None, said: str
) -> None:
    result = judge.judge_memory_limit("x", 2048 * MIB, routes, driver)
    assert _failed(result) is bool(said)
    assert said in result.message


@pytest.mark.parametrize(
    ("charged", "driver", "level"),
    [
        (300, 302, None),
        (300, 310, CheckLevel.ERROR),
        (300, 200, CheckLevel.WARNING),
        (0, 16, CheckLevel.ERROR),
    ],
)
def test_a_charge_is_what_the_driver_took(charged: int, driver: int, level: CheckLevel | None) -> None:
    result = judge.judge_charge("x", "a context", charged * MIB, driver * MIB)
    assert (result.level if _failed(result) else None) is level


@pytest.mark.parametrize(
    ("loaded", "mapped", "said"),
    [
        (LIMITS, [LIMITS, DRIVER], ""),
        (DRIVER, [DRIVER], "the limits library is not mapped; programs use libcuda.so.570"),
        (COMPAT, [LIMITS, DRIVER, COMPAT], "programs find libcuda.so.535"),
        (LIMITS, [LIMITS, DRIVER, COMPAT], "2 libraries besides"),
        (LIMITS, [LIMITS], "0 libraries besides"),
    ],
)
def test_programs_have_the_limits_library_and_behind_it_the_drivers(
    loaded: LibraryFile, mapped: list[LibraryFile], said: str
) -> None:
    result = judge.judge_libraries("x", LIMITS, loaded, mapped)
    assert _failed(result) is bool(said)
    assert said in result.message


@pytest.mark.parametrize(
    ("readings", "said"),
    [
        (FrameworkReadings("2.9", MIB, [LIMITS], (2.0, 0.5), 1e-5), ""),
        (FrameworkReadings("2.9", MIB, [LIMITS], tokens=[8], expected=[8]), ""),
        (FrameworkReadings("2.9", MIB, [DRIVER], (2.0, 0.5)), "without the limits library"),
        (FrameworkReadings("2.9", 99 * MIB, [LIMITS], (2.0, 0.5)), "sees 99 MiB"),
        (FrameworkReadings("2.9", MIB, [LIMITS], (2.0, 1.9)), "does not learn"),
        (FrameworkReadings("2.9", MIB, [LIMITS], (2.0, float("nan"))), "does not learn"),
        (FrameworkReadings("2.9", MIB, [LIMITS], (2.0, 0.5), 3.0), "off by 3"),
        (FrameworkReadings("2.9", MIB, [LIMITS], error=float("nan")), "off by nan"),
        (FrameworkReadings("2.9", MIB, [LIMITS], tokens=[7], expected=[8]), "generated [7]"),
    ],
)
def test_a_framework_passes_only_if_it_learns_infers_and_sees_its_share(
    readings: FrameworkReadings, said: str
) -> None:
    result = judge.judge_framework("x", LIMITS, 2 * MIB, readings)
    assert _failed(result) is bool(said)
    assert said in result.message


def test_a_graph_whose_kernels_did_not_all_run_fails() -> None:
    assert not _failed(judge.judge_graphs("x", 80, 80, 80))
    assert "captured: 72 of 80" in judge.judge_graphs("x", 80, 80, 72).message


def test_a_restored_process_must_have_its_memory() -> None:
    done = [("Lock", 0), ("Unlock", 0)]
    assert not _failed(judge.judge_checkpoint("x", done, unchanged=True))
    assert judge.judge_checkpoint("x", done, unchanged=False).is_error
    refused = judge.judge_checkpoint("x", [("Lock", 800)], unchanged=False)
    assert _failed(refused)
    assert not refused.is_error


def test_nvidia_smi_must_show_the_share() -> None:
    assert not _failed(judge.judge_smi("x", 2048 * MIB, [2048 * MIB]))
    assert _failed(judge.judge_smi("x", 2048 * MIB, [24576 * MIB]))
    assert _failed(judge.judge_smi("x", 2048 * MIB, []))
