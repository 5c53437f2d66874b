"""Which tenant gets a GPU next: the native decision, on a virtual clock."""

import ctypes

import pytest

from testing.lease import native
from testing.lease.clock import MS, S
from testing.lease.lease import BEST_EFFORT, EQUAL, NEVER

core = native.core()


class World:
    """The accounts of one GPU."""

    def __init__(self) -> None:
        self.accounts = native.Accounts(count=native.TENANTS)
        self.now = S

    def tenant(
        self, index: int, milli: int, limit: int = 1000, priority: int = 0, policy: int = BEST_EFFORT
    ) -> None:
        core.lease_configure(ctypes.byref(self.accounts.of[index]), policy, milli, limit, priority, self.now)

    def wants(self, index: int) -> None:
        core.lease_admit(ctypes.byref(self.accounts), index, self.now)
        self.accounts.of[index].demand = 1

    def charge(self, index: int, amount: int) -> None:
        core.lease_charge(ctypes.byref(self.accounts), index, amount, self.now, 1)

    def choose(self, holder: int = -1, pending: int = 0) -> tuple[int, int]:
        retry = ctypes.c_int64()
        for account in self.accounts.of:
            if account.used:
                core.lease_touch(ctypes.byref(account), self.now, 0)
        next_ = core.lease_choose(ctypes.byref(self.accounts), self.now, holder, pending, ctypes.byref(retry))
        return next_, retry.value

    def run(self, turns: int, length: int = 10 * MS) -> dict[int, int]:
        """Give turns to the chosen tenants and return the time that each got."""
        got: dict[int, int] = {}
        for _ in range(turns):
            chosen, retry = self.choose()
            if chosen < 0:
                self.now = retry
                continue
            self.now += length
            self.charge(chosen, length)
            got[chosen] = got.get(chosen, 0) + length
        return got


@pytest.fixture
def world() -> World:
    return World()


def test_no_tenant_is_chosen_when_none_wants_the_gpu(world: World) -> None:
    world.tenant(0, 500)
    assert world.choose() == (-1, NEVER)


def test_time_is_divided_in_proportion_to_shares(world: World) -> None:
    for index, milli in enumerate((500, 300, 200)):
        world.tenant(index, milli)
        world.wants(index)
    got = world.run(1000)
    assert [round(got[index] / (10 * MS) / 10) for index in range(3)] == [50, 30, 20]


def test_the_equal_policy_ignores_shares(world: World) -> None:
    for index, milli in enumerate((900, 100)):
        world.tenant(index, milli, policy=EQUAL)
        world.wants(index)
    got = world.run(1000)
    assert abs(got[0] - got[1]) <= 10 * MS


def test_a_share_that_is_the_limit_is_not_exceeded_on_an_idle_gpu(world: World) -> None:
    world.tenant(0, 300, limit=300)
    world.wants(0)
    got = world.run(2000)
    assert got[0] / (world.now - S) == pytest.approx(0.3, abs=0.005)


def test_a_limit_above_the_share_is_reached_and_not_exceeded(world: World) -> None:
    world.tenant(0, 200, limit=500)
    world.wants(0)
    got = world.run(2000)
    assert got[0] / (world.now - S) == pytest.approx(0.5, abs=0.005)


def test_a_tenant_without_tokens_is_chosen_again_at_the_returned_time(world: World) -> None:
    world.tenant(0, 300, limit=300)
    world.wants(0)
    world.charge(0, 30 * MS)
    chosen, retry = world.choose()
    assert chosen == -1
    assert world.now < retry <= world.now + 100 * MS
    world.now = retry
    assert world.choose()[0] == 0


def test_the_higher_priority_is_chosen_first(world: World) -> None:
    world.tenant(0, 900)
    world.tenant(1, 100, priority=1)
    world.wants(0)
    world.wants(1)
    world.charge(1, 20 * MS)
    assert world.choose()[0] == 1


def test_a_share_is_kept_next_to_a_higher_priority_that_never_stops(world: World) -> None:
    world.tenant(0, 200)
    world.tenant(1, 800, priority=1)
    world.wants(0)
    world.wants(1)
    got = world.run(1000)
    assert got[0] / (world.now - S) == pytest.approx(0.2, abs=0.02)


def test_a_tenant_with_share_zero_progresses_among_equals(world: World) -> None:
    world.tenant(0, 0)
    world.tenant(1, 1000)
    world.wants(0)
    world.wants(1)
    got = world.run(1000)
    assert 0 < got[0] < got[1] / 50


def test_a_tenant_that_slept_long_gets_no_credit(world: World) -> None:
    for index in (0, 1):
        world.tenant(index, 500)
    world.wants(1)
    world.run(100)
    world.wants(0)
    got = world.run(100)
    assert abs(got[0] - got[1]) <= 20 * MS


def test_a_tenant_that_slept_briefly_keeps_a_little_credit(world: World) -> None:
    for index in (0, 1):
        world.tenant(index, 500)
        world.wants(index)
    world.run(100)
    world.accounts.of[0].demand = world.accounts.of[0].admitted = 0
    world.accounts.of[0].active_at = world.now
    world.run(4)
    world.wants(0)
    got = world.run(10)
    assert got[0] > got[1]


def test_a_suspect_tenant_is_not_chosen(world: World) -> None:
    world.tenant(0, 500)
    world.wants(0)
    world.accounts.of[0].suspect = 1
    assert world.choose() == (-1, NEVER)


def test_time_that_the_holder_has_not_been_charged_yet_counts(world: World) -> None:
    for index in (0, 1):
        world.tenant(index, 500)
        world.wants(index)
    assert world.choose(holder=0, pending=MS)[0] == 1
    assert world.choose(holder=1, pending=MS)[0] == 0
