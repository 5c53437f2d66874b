"""Energy and time of a GPU are divided among its holders, and the parts add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from milligpu.tenancy.energy import EnergyAccounts, EnergyReading, Holder

GPU = "GPU-a"
SECOND = 1_000_000_000


class Meter:
    """A GPU that draws some power while holders use some of its time."""

    def __init__(self) -> None:
        self.accounts = EnergyAccounts()
        self.now, self.millijoules = 100.0, 5_000
        self.charged: dict[str, int] = {}

    def step(self, watts: float, parts: dict[str, float], used: dict[str, float] | None = None) -> None:
        """Let a second pass in which each holder used this fraction of the time."""
        self.now += 1.0
        self.millijoules += round(watts * 1000)
        for name, fraction in (used or {}).items():
            self.charged[name] = self.charged.get(name, 0) + round(fraction * SECOND)
        holders = [Holder(name, part, self.charged.get(name, 0)) for name, part in parts.items()]
        self.accounts.add(self.now, {GPU: holders}, {GPU: EnergyReading(self.now, self.millijoules)})

    def joules(self, name: str) -> float:
        found = self.accounts.holder(GPU, name)
        assert found is not None
        return found.joules


def test_idle_power_goes_by_allocation_and_the_rest_by_the_time_that_a_holder_had_the_gpu() -> None:
    meter = Meter()
    parts = {"half": 0.5, "quarter": 0.25}
    meter.step(40, parts)
    meter.step(40, parts)
    assert (meter.joules("half"), meter.joules("quarter")) == pytest.approx((20, 10))
    assert meter.accounts.gpus[GPU].unallocated_j == pytest.approx(10)
    meter.step(140, parts, {"half": 0.2, "quarter": 0.6})
    assert meter.joules("half") == pytest.approx(20 + 20 + 25)
    assert meter.joules("quarter") == pytest.approx(10 + 10 + 75)


def test_the_holder_of_a_whole_gpu_has_all_its_energy_and_its_time_is_nobodys_to_divide() -> None:
    accounts = EnergyAccounts()
    for at, joules in ((1.0, 0), (2.0, 300_000)):
        accounts.add(at, {GPU: [Holder("whole", 1.0, None)]}, {GPU: EnergyReading(at, joules)})
    found = accounts.holder(GPU, "whole")
    assert found is not None
    assert found.joules == pytest.approx(300)
    assert (accounts.gpus[GPU].shared_s, accounts.gpus[GPU].idle_s) == (0.0, 0.0)


def test_energy_that_no_holders_time_explains_is_charged_to_none_of_them() -> None:
    meter = Meter()
    meter.step(40, {"one": 0.5})
    meter.step(40, {"one": 0.5})
    meter.step(240, {"one": 0.5})
    assert meter.joules("one") == pytest.approx(40)
    assert meter.accounts.gpus[GPU].unallocated_j == pytest.approx(20 + 20 + 200)


def test_nothing_of_a_holder_that_ended_stays() -> None:
    meter = Meter()
    meter.step(40, {"one": 0.5, "two": 0.5})
    meter.step(40, {"one": 0.5, "two": 0.5})
    meter.step(40, {"two": 0.5})
    assert meter.accounts.holder(GPU, "one") is None
    assert "one" not in repr(meter.accounts.__dict__)


def test_a_gpu_that_counts_no_energy_has_none_instead_of_0() -> None:
    accounts = EnergyAccounts()
    for at in (1.0, 2.0):
        accounts.add(at, {GPU: [Holder("one", 0.5, 0)]}, {})
    assert accounts.holder(GPU, "one") is None
    assert accounts.gpus[GPU].energy_j is None


def test_power_is_that_of_the_last_seconds() -> None:
    meter = Meter()
    for _ in range(30):
        meter.step(40, {"one": 1.0})
    for _ in range(20):
        meter.step(240, {"one": 1.0}, {"one": 1.0})
    found = meter.accounts.holder(GPU, "one")
    assert found is not None
    assert found.watts == pytest.approx(240)


_SECOND = some.tuples(
    some.floats(10, 400),
    some.lists(some.floats(0, 0.3), min_size=3, max_size=3),
    some.booleans(),
)


@given(some.lists(_SECOND, min_size=2, max_size=40))
def test_the_parts_add_up_to_the_gpu(seconds: list[tuple[float, list[float], bool]]) -> None:
    meter = Meter()
    names = ("one", "two", "three")
    parts = {"one": 0.5, "two": 0.2, "three": 0.1}
    meter.step(seconds[0][0], parts)
    account = meter.accounts.gpus[GPU]
    began = (
        meter.millijoules,
        account.unallocated_j,
        account.shared_s,
        account.idle_s,
        sum(account.holders.values()),
    )
    for watts, used, works in seconds[1:]:
        meter.step(watts, parts, dict(zip(names, used, strict=True)) if works else {})
    energy = (meter.millijoules - began[0]) / 1000
    divided = account.unallocated_j - began[1] + sum(account.holders.values()) - began[4]
    assert divided == pytest.approx(energy, rel=1e-6, abs=1e-3)
    charged = sum(meter.charged.values()) / SECOND
    assert account.idle_s - began[3] + charged == pytest.approx(account.shared_s - began[2], rel=1e-6, abs=1e-6)
