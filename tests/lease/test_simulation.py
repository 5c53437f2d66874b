"""The whole lease mechanism on a modeled GPU with a virtual clock: shares, handovers, failures."""

import pytest

from testing.lease.__main__ import POLICIES
from testing.lease.cases import CASES, LATENCY_ALONE, LATENCY_SHARED, Case, Outcome, run, sliding, train
from testing.lease.clients import Policy, Requests, Tenant
from testing.lease.clock import MS, Clock, S
from testing.lease.gpu import Gpu
from testing.lease.lease import BEST_EFFORT, Lease

BY_NAME = {case.name: case for case in CASES}


def leases(clock: Clock, _gpu: Gpu, tenants: list[Tenant]) -> Lease:
    return Lease(clock, tenants)


def outcome(name: str) -> Outcome:
    return run(BY_NAME[name], leases, seconds=12, warm=1)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("70/30", 1),
        ("50/30/20", 1),
        ("4x25", 1),
        ("0.1 ms against 20 ms", 1),
        ("graphs", 1),
        ("8 processes against 1", 1),
        ("on and off", 1),
        ("fixed 70/30", 1),
    ],
)
def test_every_tenant_gets_its_share_and_the_gpu_stays_busy(name: str, most: float) -> None:
    result = outcome(name)
    assert result.error < most
    assert result.idle < 0.5


def test_a_tenant_alone_with_a_fixed_share_gets_only_its_share() -> None:
    assert outcome("fixed 30 alone").error < 1


def test_a_synchronous_client_gets_its_share_while_others_use_its_gaps() -> None:
    # If it kept the lease through the gaps instead, it would lose more than 8 points.
    assert outcome("synchronous, 1 ms and 0.2 ms gaps").error < 3


def test_a_high_priority_request_waits_for_at_most_one_kernel_of_another_tenant() -> None:
    waits: list[float] = []
    for case in (LATENCY_ALONE, LATENCY_SHARED):
        result = run(case, leases, seconds=10)
        process = result.tenants[0].processes[0]
        assert isinstance(process, Requests)
        latencies = sorted(process.latencies)
        waits.append(latencies[len(latencies) * 99 // 100])
        if case is LATENCY_SHARED:
            assert result.shares[1] > 0.9 * (100 - result.shares[0])
    assert waits[1] - waits[0] < 1.3 * MS


def test_a_resize_takes_effect_within_a_second() -> None:
    gpus: list[Gpu] = []

    def maker(clock: Clock, gpu: Gpu, tenants: list[Tenant]) -> Lease:
        gpus.append(gpu)
        return Lease(clock, tenants)

    def resize(clock: Clock, policy: Policy, tenants: list[Tenant]) -> None:
        assert isinstance(policy, Lease)

        def change() -> None:
            for tenant, share in zip(tenants, (0.2, 0.8), strict=True):
                tenant.share = share
                policy.configure(tenant)

        clock.at(2 * S, change)

    run(BY_NAME["70/30"], maker, seconds=4, during=resize)
    # One turn is 3.5 percent of a second.
    assert sliding(gpus[0].buckets[0], 1, 2, width=1) == pytest.approx([70], abs=4)
    assert sliding(gpus[0].buckets[0], 3, 4, width=1) == pytest.approx([20], abs=4)


def test_a_hanging_tenant_delays_others_by_less_than_a_second() -> None:
    def hang(clock: Clock, policy: Policy, tenants: list[Tenant]) -> None:
        assert isinstance(policy, Lease)
        victim = tenants[0].processes[0]
        victim.wake = lambda: None  # type: ignore[method-assign]
        clock.at(2 * S, lambda: policy.silence(victim))

    case = Case("hang", (0.7, 0.3), ([train(MS)], [train(MS)]))
    result = run(case, leases, seconds=4, warm=3, during=hang)
    assert result.shares[1] > 99


def test_without_an_arbiter_tenants_stay_in_their_time_slots() -> None:
    def kill(clock: Clock, policy: Policy, _tenants: list[Tenant]) -> None:
        assert isinstance(policy, Lease)
        clock.at(S, policy.die)

    for kernel in (MS, 30 * MS):
        case = Case("dead", (0.7, 0.3), ([train(kernel)], [train(MS)]))
        result = run(case, leases, seconds=12, warm=2, during=kill)
        assert result.shares[0] < 71
        assert result.shares[1] < 31
        assert result.shares[1] > 28


def test_a_tenant_alone_gets_the_gpu_up_to_its_limit() -> None:
    for limit in (1.0, 0.6, 0.3):
        case = Case("alone", (0.3, 0.7), ([train(MS)], []), limits=(limit, 0.7), expected=(limit, 0))
        got = run(case, lambda c, _g, t: Lease(c, t, BEST_EFFORT), seconds=3, warm=1).shares[0]
        assert got == pytest.approx(100 * limit, abs=1)


def test_time_tokens_divide_synchronous_work_well_and_queued_work_badly() -> None:
    assert run(BY_NAME["70/30, both wait for every 10 ms"], POLICIES["Gemini"]).error < 2
    assert run(BY_NAME["70/30"], POLICIES["Gemini"], seconds=12, warm=1).error > 5


def test_utilization_feedback_does_not_limit_graphs() -> None:
    result = run(BY_NAME["graphs with the smaller share"], POLICIES["HAMi"], seconds=12, warm=1)
    assert result.shares[0] > 45


def test_without_arbitration_a_tenant_with_more_processes_gets_more_time() -> None:
    result = run(BY_NAME["8 processes against 1"], POLICIES["none"], seconds=12, warm=1)
    assert result.shares[0] == pytest.approx(100 * 8 / 9, abs=1)
