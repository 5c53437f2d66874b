"""GPUs that are leased together: tenants whose work spans several GPUs get all of them or none."""

import ctypes

import pytest

from testing.lease import native
from testing.lease.clock import MS, US
from testing.lease.collectives import step_time, times_ideal

QUANTUM = 35 * MS
HEARTBEAT = 50 * MS
BEST_EFFORT = 3
# A process that wants to launch and has no work on the GPU, or whose work is done.
WAITING = native.ACTIVE | native.NEAR | native.DRAINED
IDLE = native.NEAR | native.DRAINED


class Machine:
    """GPUs and tenants of the arbiter; the test says what the tenants' processes report."""

    def __init__(self, gpus: int, tenants: list[tuple[int, ...]], priorities: tuple[int, ...] = ()) -> None:
        """`tenants` are the GPUs of each."""
        self.core, self.now = native.core(), 0
        self.gpus = [native.Gpu() for _ in range(gpus)]
        self.gangs = native.Gangs()
        self.spans: list[native.Span] = []
        self.entries: dict[tuple[int, int], int] = {}
        self._words: dict[tuple[int, int], native.Words] = {}
        self._processes: dict[tuple[int, int], native.Process] = {}
        for at, gpu in enumerate(self.gpus):
            self.core.lease_gpu_init(ctypes.byref(gpu))
            self.gangs.gpus[at] = ctypes.pointer(gpu)
        for number, places in enumerate(tenants):
            span = native.Span()
            for index in range(native.PAGE_GPUS):
                span.gpus[index] = -1
            for index, at in enumerate(places):
                self._attach(number, at, priorities[number] if priorities else 0)
                span.gpus[index], span.entries[index] = at, self.entries[number, at]
            self.spans.append(span)
            self.core.lease_gangs_add(ctypes.byref(self.gangs), ctypes.byref(span))

    def _attach(self, tenant: int, at: int, priority: int) -> None:
        words, gpu = native.Words(), ctypes.byref(self.gpus[at])
        entry = self.core.lease_gpu_add(gpu, ctypes.byref(words))
        self.core.lease_gpu_configure(gpu, entry, BEST_EFFORT, 300, 1000, priority, self.now)
        process = native.Process()
        self.core.lease_gpu_join(gpu, entry, ctypes.byref(process))
        self._words[tenant, at], self._processes[tenant, at] = words, process
        self.entries[tenant, at] = entry

    def say(self, tenant: int, at: int, state: int) -> None:
        words = self._words[tenant, at]
        message = native.Message(0, state, 0, words.generation & 0xFFFFFFFF, self.now)
        arguments = (ctypes.byref(self._processes[tenant, at]), ctypes.byref(message), self.now)
        self.core.lease_gpu_say(ctypes.byref(self.gpus[at]), self.entries[tenant, at], *arguments)
        self.core.lease_gangs_step(ctypes.byref(self.gangs), self.now)

    def say_all(self, tenant: int, state: int) -> None:
        for number, at in self._words:
            if number == tenant:
                self.say(tenant, at, state)

    def wait(self, nanoseconds: int) -> None:
        """Let time pass; only timers of groups run."""
        end = self.now + nanoseconds
        while (due := self.core.lease_gangs_due(ctypes.byref(self.gangs), self.now)) < end:
            self.now = due
            self.core.lease_gangs_step(ctypes.byref(self.gangs), self.now)
        self.now = end
        self.core.lease_gangs_step(ctypes.byref(self.gangs), self.now)

    def beat(self) -> None:
        self.now += HEARTBEAT
        self.core.lease_gangs_group(ctypes.byref(self.gangs), self.now)
        self.core.lease_gangs_step(ctypes.byref(self.gangs), self.now)

    def finish(self) -> None:
        """All holders report that their turn is over, and its work done."""
        for at, number in enumerate(self.holders):
            if number is not None:
                self.say(number, at, WAITING)

    @property
    def holders(self) -> list[int | None]:
        """The tenant that has each GPU."""
        found: list[int | None] = []
        for at, gpu in enumerate(self.gpus):
            here = {entry: number for (number, place), entry in self.entries.items() if place == at}
            found.append(here.get(gpu.holder))
        return found

    def flags(self, tenant: int, at: int) -> int:
        return self._words[tenant, at].flags

    def until(self, tenant: int, at: int) -> int:
        return self._words[tenant, at].until


def two_gangs() -> Machine:
    """Two tenants that want both GPUs, when the one that was first has no more than the other."""
    here = Machine(2, [(0, 1), (0, 1)])
    for tenant in (0, 1):
        here.say_all(tenant, WAITING)
    here.beat()
    here.finish()
    for _ in range(3):
        here.wait(QUANTUM)
        here.finish()
    return here


def test_a_tenant_whose_work_spans_two_gpus_gets_both_or_none() -> None:
    here = two_gangs()
    turns: list[tuple[int | None, ...]] = []
    for _ in range(10):
        turns.append(tuple(here.holders))
        assert here.until(turns[-1][0] or 0, 0) == here.until(turns[-1][1] or 0, 1)
        here.wait(QUANTUM)
        here.finish()
    assert set(turns) == {(0, 0), (1, 1)}
    assert turns.count((0, 0)) == turns.count((1, 1))


def test_a_turn_ends_on_no_gpu_before_it_ends_on_all() -> None:
    here = two_gangs()
    (mine, _) = here.holders
    assert mine is not None
    here.wait(QUANTUM)
    here.say(mine, 0, WAITING)
    assert here.holders == [mine, mine]
    here.say(mine, 1, native.ACTIVE | native.NEAR)
    assert here.holders == [1 - mine, 1 - mine]


def test_work_that_waits_for_another_gpu_at_the_end_of_a_turn_gets_what_it_waits_for() -> None:
    here = two_gangs()
    (mine, _) = here.holders
    assert mine is not None
    here.wait(QUANTUM)
    # On GPU 0 the tenant wants to launch, on GPU 1 its kernel waits for that launch.
    here.say(mine, 0, WAITING)
    assert here.until(mine, 0) <= here.now
    here.wait(MS)
    assert here.until(mine, 0) > here.now
    assert here.flags(mine, 0) & 1, "one piece of work at a time"
    here.say(mine, 1, WAITING)
    assert here.until(mine, 0) <= here.now, "no longer than necessary"
    here.say(mine, 0, WAITING)
    assert here.holders == [1 - mine, 1 - mine]


def test_a_kernel_that_never_ends_delays_the_others_by_a_tenth_of_a_second() -> None:
    here = two_gangs()
    (mine, _) = here.holders
    assert mine is not None
    here.wait(QUANTUM + 99 * MS)
    assert here.holders == [mine, mine]
    here.wait(2 * MS)
    assert here.holders == [1 - mine, 1 - mine]


def test_a_tenant_between_two_steps_keeps_its_gpus_for_a_moment_and_not_for_long() -> None:
    here = two_gangs()
    (mine, _) = here.holders
    assert mine is not None
    here.wait(5 * MS)
    here.say_all(mine, IDLE)
    here.wait(500 * US)
    assert here.holders == [mine, mine]
    here.say(mine, 0, native.ACTIVE)
    here.wait(5 * MS)
    assert here.holders == [mine, mine], "it has work on one of them"
    here.say(mine, 0, IDLE)
    here.wait(2 * MS)
    assert here.holders == [1 - mine, 1 - mine]


def test_a_tenant_of_one_gpu_gets_its_share_next_to_gangs() -> None:
    here = Machine(2, [(0, 1), (0, 1), (1,)])
    for tenant in range(3):
        here.say_all(tenant, WAITING)
    here.beat()
    here.finish()
    turns: list[tuple[int | None, ...]] = []
    for _ in range(30):
        turns.append(tuple(here.holders))
        here.wait(QUANTUM)
        here.finish()
    assert [turns.count(each) for each in ((0, 0), (1, 1))] == pytest.approx([10, 10], abs=1)
    assert turns.count((None, 2)) == pytest.approx(10, abs=1)


def test_tenants_of_different_gpus_have_turns_at_the_same_time() -> None:
    here = Machine(3, [(0, 1), (1, 2), (2,), (0,)])
    for tenant in range(4):
        here.say_all(tenant, WAITING)
    here.beat()
    here.finish()
    turns: list[tuple[int | None, ...]] = []
    for _ in range(12):
        turns.append(tuple(here.holders))
        here.wait(QUANTUM)
        here.finish()
    # At first those that had to wait catch up.
    assert turns[4:] in ([(3, 1, 1), (0, 0, 2)] * 4, [(0, 0, 2), (3, 1, 1)] * 4)


def test_a_higher_priority_ends_the_turn_of_a_gang_on_all_gpus() -> None:
    here = Machine(2, [(0, 1), (0, 1), (1,)], priorities=(0, 0, 1))
    for tenant in (0, 1):
        here.say_all(tenant, WAITING)
    here.beat()
    here.finish()
    here.wait(5 * MS)
    here.say(2, 1, WAITING)
    here.finish()
    assert here.holders[1] == 2


def test_gpus_are_leased_on_their_own_again_when_no_work_spans_them() -> None:
    here = two_gangs()
    assert [gpu.together for gpu in here.gpus] == [1, 1]
    here.say(0, 0, IDLE)
    here.say(1, 1, IDLE)
    for _ in range(3):
        here.beat()
    assert [gpu.together for gpu in here.gpus] == [0, 0]
    here.finish()
    assert here.holders == [1, 0]


def test_a_gang_that_is_alone_on_its_gpus_is_not_put_into_a_group() -> None:
    here = Machine(2, [(0, 1), (0, 1)])
    here.say_all(0, WAITING)
    here.beat()
    assert [gpu.together for gpu in here.gpus] == [0, 0]


LONG = (pytest.mark.long, pytest.mark.alone)


@pytest.mark.parametrize(
    ("gpus", "tenants"), [(2, 2), (2, 3), (4, 3), *(pytest.param(8, count, marks=LONG) for count in (2, 3))]
)
def test_collectives_of_tenants_on_the_same_gpus_take_little_longer_than_ideal(gpus: int, tenants: int) -> None:
    assert times_ideal(tenants, gpus, seconds=4) < 1.3


def test_with_independent_leases_collectives_take_many_times_as_long() -> None:
    """Otherwise the test before this one would show nothing."""
    assert times_ideal(2, 2, "apart", seconds=4) > 10


def test_gangs_get_their_shares() -> None:
    small, large = step_time([0.3, 0.7], 2, seconds=6)
    assert small / large == pytest.approx(7 / 3, rel=0.1)
