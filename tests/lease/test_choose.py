"""Who gets a GPU next: the native decision, with a virtual clock."""

import ctypes

import pytest

from bench.lease import native
from bench.lease.clock import MS, S
from bench.lease.lease import BEST_EFFORT, EQUAL, FIXED, NEVER

core = native.core()


class World:
    """Accounts of one GPU."""

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
        """Give turns to whoever is chosen; what each one got."""
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


def test_nobody_gets_it_when_nobody_wants_it(world: World) -> None:
    world.tenant(0, 500)
    assert world.choose() == (-1, NEVER)


def test_time_is_divided_by_requests(world: World) -> None:
    for index, milli in enumerate((500, 300, 200)):
        world.tenant(index, milli)
        world.wants(index)
    got = world.run(1000)
    assert [round(got[index] / (10 * MS) / 10) for index in range(3)] == [50, 30, 20]


def test_equal_share_ignores_requests(world: World) -> None:
    for index, milli in enumerate((900, 100)):
        world.tenant(index, milli, policy=EQUAL)
        world.wants(index)
    got = world.run(1000)
    assert abs(got[0] - got[1]) <= 10 * MS


def test_a_fixed_share_is_a_ceiling_although_the_gpu_idles(world: World) -> None:
    world.tenant(0, 300, policy=FIXED)
    world.wants(0)
    got = world.run(2000)
    assert got[0] / (world.now - S) == pytest.approx(0.3, abs=0.005)


def test_a_limit_above_the_request_is_reached_and_not_passed(world: World) -> None:
    world.tenant(0, 200, limit=500)
    world.wants(0)
    got = world.run(2000)
    assert got[0] / (world.now - S) == pytest.approx(0.5, abs=0.005)


def test_out_of_tokens_says_when_to_look_again(world: World) -> None:
    world.tenant(0, 300, policy=FIXED)
    world.wants(0)
    world.charge(0, 30 * MS)
    chosen, retry = world.choose()
    assert chosen == -1
    assert world.now < retry <= world.now + 100 * MS
    world.now = retry
    assert world.choose()[0] == 0


def test_a_higher_priority_goes_first(world: World) -> None:
    world.tenant(0, 900)
    world.tenant(1, 100, priority=1)
    world.wants(0)
    world.wants(1)
    world.charge(1, 20 * MS)
    assert world.choose()[0] == 1


def test_a_guarantee_is_kept_beside_a_higher_priority_that_never_stops(world: World) -> None:
    world.tenant(0, 200)
    world.tenant(1, 800, priority=1)
    world.wants(0)
    world.wants(1)
    got = world.run(1000)
    assert got[0] / (world.now - S) == pytest.approx(0.2, abs=0.02)


def test_a_request_of_nothing_still_makes_progress_among_equals(world: World) -> None:
    world.tenant(0, 0)
    world.tenant(1, 1000)
    world.wants(0)
    world.wants(1)
    got = world.run(1000)
    assert 0 < got[0] < got[1] / 50


def test_a_long_sleep_earns_nothing(world: World) -> None:
    for index in (0, 1):
        world.tenant(index, 500)
    world.wants(1)
    world.run(100)
    world.wants(0)
    got = world.run(100)
    assert abs(got[0] - got[1]) <= 20 * MS


def test_a_short_sleep_keeps_a_little(world: World) -> None:
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


def test_a_suspect_gets_nothing(world: World) -> None:
    world.tenant(0, 500)
    world.wants(0)
    world.accounts.of[0].suspect = 1
    assert world.choose() == (-1, NEVER)


def test_what_the_holder_has_used_since_counts(world: World) -> None:
    for index in (0, 1):
        world.tenant(index, 500)
        world.wants(index)
    assert world.choose(holder=0, pending=MS)[0] == 1
    assert world.choose(holder=1, pending=MS)[0] == 0
