"""The audit compares the driver's counts with usage pages and limits."""

from dataclasses import replace

import pytest

from milligpu.model.reasons import ViolationKind
from milligpu.model.units import Mib
from milligpu.nvml.readings import GpuProcess
from milligpu.tenancy.audit import AuditedShare, Auditor, audit
from milligpu.wire.status import Violation

PLACE = AuditedShare("s1", "GPU-0", 1000, 500, 400.0, frozenset({10, 11}))
IN_S1 = {10: "s1", 11: "s1", 12: "s1"}


def kinds(processes: list[GpuProcess], place: AuditedShare = PLACE) -> list[ViolationKind]:
    return [finding.kind for finding in audit(processes, [place], IN_S1)]


def test_a_tenant_within_its_share_is_no_violation() -> None:
    assert kinds([GpuProcess("GPU-0", 10, Mib(300), 0.4), GpuProcess("GPU-0", 11, Mib(100), 0.1)]) == []


def test_what_the_driver_takes_for_an_honest_process_is_measured_and_allowed() -> None:
    """The same count is honest on one GPU and a wrong usage page on another."""
    found = [GpuProcess("GPU-0", 10, Mib(430))]
    assert kinds(found, replace(PLACE, slack_mib=40.0)) == []
    assert kinds(found, replace(PLACE, slack_mib=16.0)) == [ViolationKind.WRONG_USAGE_PAGE]


def test_a_process_of_no_tenant_is_unknown() -> None:
    (finding,) = audit([GpuProcess("GPU-0", 99, Mib(10))], [PLACE], IN_S1)
    assert (finding.kind, finding.pid, finding.tenant) == (ViolationKind.UNKNOWN_PROCESS, 99, None)


def test_a_process_that_is_not_on_its_tenants_usage_page_bypasses_the_limits() -> None:
    assert kinds([GpuProcess("GPU-0", 12, Mib(10))]) == [ViolationKind.BYPASS]


def test_a_process_on_the_usage_page_belongs_to_the_tenant_even_if_it_hides_its_environment() -> None:
    assert audit([GpuProcess("GPU-0", 10, Mib(300))], [PLACE], {}) == []


def test_memory_over_the_limit_counts_all_processes_of_a_tenant() -> None:
    assert kinds([GpuProcess("GPU-0", 10, Mib(600)), GpuProcess("GPU-0", 11, Mib(600))]) == [
        ViolationKind.OVER_MEMORY
    ]


@pytest.mark.parametrize("used", [None, 0.0])
def test_a_usage_page_that_says_less_than_the_driver_is_wrong(used: float | None) -> None:
    place = AuditedShare("s1", "GPU-0", 1000, 500, used, frozenset({10}))
    assert kinds([GpuProcess("GPU-0", 10, Mib(300))], place) == [ViolationKind.WRONG_USAGE_PAGE]


def test_time_over_the_limit_is_found() -> None:
    assert kinds([GpuProcess("GPU-0", 10, Mib(1), 0.4), GpuProcess("GPU-0", 11, Mib(1), 0.4)]) == [
        ViolationKind.OVER_COMPUTE
    ]


def test_a_whole_gpu_has_no_limit_to_exceed() -> None:
    assert audit([GpuProcess("GPU-1", 20, Mib(5000), 1.0)], [PLACE], {20: "whole"}) == []


def test_a_violation_is_reported_once_and_only_when_found_twice() -> None:
    auditor = Auditor()
    finding = Violation(ViolationKind.UNKNOWN_PROCESS, "GPU-0", None, 99, "")
    assert [len(auditor.confirm(found)) for found in ([finding], [], [finding], [finding], [finding])] == [
        0,
        0,
        0,
        1,
        0,
    ]
    assert auditor.counts == {ViolationKind.UNKNOWN_PROCESS: 1}
    auditor.confirm([])
    assert auditor.current == []
