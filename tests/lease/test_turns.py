"""The turns of one GPU, event by event, on a virtual clock."""

import ctypes

import pytest

from testing.lease import native
from testing.lease.clock import MS, US, S
from testing.lease.lease import BEST_EFFORT, NEVER
from testing.lease.native import ACTIVE, DRAINED, NEAR

core = native.core()
WANT = ACTIVE | NEAR | DRAINED


class Machine:
    """One GPU and tenants with one process each."""

    def __init__(self) -> None:
        self.gpu = native.Gpu()
        self.now = S
        self.words: list[native.Words] = []
        self.processes: list[native.Process] = []
        core.lease_gpu_init(ctypes.byref(self.gpu))

    def tenant(self, milli: int, limit: int = 1000, priority: int = 0, policy: int = BEST_EFFORT) -> int:
        words, process = native.Words(), native.Process()
        self.words.append(words)
        self.processes.append(process)
        who = core.lease_gpu_add(ctypes.byref(self.gpu), ctypes.byref(words))
        self.configure(who, milli, limit, priority, policy)
        core.lease_gpu_join(ctypes.byref(self.gpu), who, ctypes.byref(process))
        return who

    def configure(
        self, who: int, milli: int, limit: int = 1000, priority: int = 0, policy: int = BEST_EFFORT
    ) -> None:
        core.lease_gpu_configure(ctypes.byref(self.gpu), who, policy, milli, limit, priority, self.now)

    def say(self, who: int, state: int, stamp: int | None = None, generation: int | None = None) -> None:
        about: int = self.words[who].generation if generation is None else generation
        message = native.Message(0, state, 0, about & 0xFFFFFFFF, self.now if stamp is None else stamp)
        process = ctypes.byref(self.processes[who])
        core.lease_gpu_say(ctypes.byref(self.gpu), who, process, ctypes.byref(message), self.now)

    def die(self, who: int) -> None:
        core.lease_gpu_leave(ctypes.byref(self.gpu), who, ctypes.byref(self.processes[who]), self.now)

    def advance(self, until: int) -> None:
        while (due := core.lease_gpu_due(ctypes.byref(self.gpu))) <= until:
            self.now = max(self.now, due)
            core.lease_gpu_timer(ctypes.byref(self.gpu), self.now)
        self.now = until

    def holds(self, who: int) -> bool:
        return self.words[who].until > self.now

    def charged(self, who: int) -> int:
        core.lease_gpu_settle(ctypes.byref(self.gpu), self.now)
        return self.gpu.accounts.of[who].charged


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_the_first_tenant_that_asks_gets_an_idle_gpu_and_is_woken(machine: Machine) -> None:
    who = machine.tenant(500)
    generation = machine.words[who].generation
    machine.gpu.wake = 0
    machine.say(who, WANT)
    assert machine.holds(who)
    assert machine.words[who].generation > generation
    assert machine.gpu.wake == 1 << who


def test_a_lease_that_no_other_tenant_wants_is_extended(machine: Machine) -> None:
    who = machine.tenant(500)
    machine.say(who, WANT)
    for _ in range(10):
        machine.advance(machine.now + 500 * MS)
        assert machine.holds(who)


def test_the_successor_launches_only_after_the_holder_has_drained(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(second, WANT)
    machine.advance(machine.now + 50 * MS)
    assert not machine.holds(second), "its predecessor has not reported that it is near its end"
    machine.say(first, ACTIVE | NEAR)
    assert machine.holds(second)
    assert not machine.holds(first)


def test_an_overrun_is_charged_to_the_previous_holder(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(second, WANT)
    machine.advance(machine.now + 5 * MS)
    machine.say(first, ACTIVE | NEAR)
    machine.now += 15 * MS
    machine.say(first, ACTIVE | NEAR | DRAINED)
    assert machine.charged(first) == 20 * MS - 2 * MS
    assert machine.charged(second) == 2 * MS, "it got a time slice of its own in between"


def test_a_false_timestamp_cannot_move_a_charge_far_back(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(second, WANT)
    machine.say(first, ACTIVE | NEAR)
    machine.now += 50 * MS
    machine.say(first, ACTIVE | NEAR | DRAINED, stamp=S)
    assert machine.charged(first) >= 49 * MS


def test_a_silent_holder_loses_the_lease_at_the_deadline(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(second, WANT)
    start = machine.now
    while not machine.holds(second):
        machine.advance(machine.now + MS)
        assert machine.now < start + 200 * MS
    machine.advance(machine.now + 500 * MS)
    assert machine.gpu.accounts.of[first].suspect
    machine.say(second, ACTIVE | NEAR | DRAINED)
    machine.advance(machine.now + MS)
    assert machine.holds(second), "a suspect tenant gets no turn"
    machine.say(first, WANT)
    assert not machine.gpu.accounts.of[first].suspect
    for _ in range(100):
        if machine.holds(first):
            break
        machine.advance(machine.now + 10 * MS)
        machine.say(second, ACTIVE | NEAR | DRAINED)
    assert machine.holds(first), "it reports again"


def test_the_lease_of_a_dead_holder_is_passed_on_immediately(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(second, WANT)
    machine.die(first)
    assert machine.holds(second)
    assert not machine.holds(first)


def test_a_holder_that_dies_while_draining_does_not_delay_its_successor(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(second, WANT)
    machine.say(first, ACTIVE | NEAR)
    machine.now += MS
    machine.die(first)
    machine.now += MS
    assert machine.charged(second) == MS


def test_a_higher_priority_gets_the_lease_immediately(machine: Machine) -> None:
    low, high = machine.tenant(500), machine.tenant(500, priority=1)
    machine.say(low, WANT)
    machine.advance(machine.now + MS)
    machine.say(high, WANT)
    assert machine.holds(high)
    assert not machine.holds(low)
    assert machine.words[low].flags & 1, "one launch at a time next to a higher priority"


def test_an_idle_holder_keeps_a_parked_lease_and_is_charged_only_for_use(machine: Machine) -> None:
    who = machine.tenant(500)
    machine.say(who, WANT)
    machine.advance(machine.now + 10 * MS)
    machine.say(who, NEAR | DRAINED)
    machine.advance(machine.now + 1000 * MS)
    assert machine.holds(who)
    assert machine.charged(who) == 10 * MS
    machine.say(who, ACTIVE)
    machine.advance(machine.now + 5 * MS)
    assert machine.charged(who) == 15 * MS


def test_a_parked_lease_passes_to_the_next_tenant_that_asks(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(first, NEAR | DRAINED)
    machine.say(second, WANT)
    assert machine.holds(second)
    assert not machine.holds(first)


def test_a_share_that_is_the_limit_waits_for_tokens_on_an_otherwise_idle_gpu(machine: Machine) -> None:
    who = machine.tenant(300, limit=300)
    machine.say(who, WANT)
    held = 0
    for _ in range(30_000):
        machine.advance(machine.now + 100 * US)
        if machine.holds(who):
            held += 1
        else:
            machine.say(who, WANT)
    assert held / 30_000 == pytest.approx(0.3, abs=0.01)


def test_a_report_about_an_earlier_lease_is_ignored(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    before = machine.words[first].generation
    machine.say(second, WANT)
    machine.say(first, ACTIVE | NEAR | DRAINED, generation=before - 1)
    assert machine.holds(first), "the report was about the previous lease"


def test_removing_the_holder_passes_the_lease_on(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(second, WANT)
    machine.die(first)
    core.lease_gpu_remove(ctypes.byref(machine.gpu), first, machine.now)
    assert machine.words[first].until == 0
    assert machine.holds(second)


def test_a_new_share_applies_from_the_next_turn(machine: Machine) -> None:
    who = machine.tenant(1000)
    machine.say(who, WANT)
    machine.advance(machine.now + MS)
    machine.configure(who, 200, limit=200)
    assert machine.words[who].until <= machine.now + 35 * MS


def test_a_lowered_limit_takes_the_gpu_from_a_tenant_that_is_alone_within_a_turn(machine: Machine) -> None:
    who = machine.tenant(300, limit=1000)
    machine.say(who, WANT)
    machine.advance(machine.now + S)
    machine.configure(who, 300, limit=300)
    since, before = machine.now, machine.charged(who)
    while machine.now < since + S:
        machine.advance(machine.now + 100 * US)
        machine.say(who, WANT)
    assert machine.charged(who) - before <= 0.3 * S + 35 * MS


def test_a_raised_limit_gives_an_idle_gpu_at_once_to_a_tenant_that_was_out_of_tokens(machine: Machine) -> None:
    who = machine.tenant(0, limit=1)
    machine.say(who, WANT)
    while machine.holds(who):
        machine.advance(machine.now + MS)
        machine.say(who, WANT)
    assert machine.gpu.retry_at > machine.now + 500 * MS, "with a thousandth it waits long for its next turn"
    machine.configure(who, 0, limit=1000)
    assert machine.holds(who)


def test_a_tenant_beyond_the_maximum_per_gpu_is_refused(machine: Machine) -> None:
    for _ in range(native.TENANTS):
        machine.tenant(10)
    words = native.Words()
    assert core.lease_gpu_add(ctypes.byref(machine.gpu), ctypes.byref(words)) == -1


def test_a_pause_is_not_charged_when_it_ends(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(second, WANT)
    machine.say(first, WANT)
    machine.say(second, ACTIVE | NEAR | DRAINED)
    machine.advance(machine.now + MS)
    machine.say(first, NEAR | DRAINED)
    machine.advance(machine.now + 50 * MS)
    machine.say(first, WANT)
    assert machine.charged(first) == MS


def test_work_that_ends_earlier_than_predicted_is_not_charged_to_its_end(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(second, WANT)
    machine.advance(machine.now + 5 * MS)
    machine.say(first, ACTIVE | NEAR, stamp=machine.now + 250 * US)
    machine.advance(machine.now + 100 * US)
    machine.say(first, ACTIVE | NEAR | DRAINED)
    assert machine.charged(first) == 5 * MS + 100 * US
    machine.advance(machine.now + MS)
    assert machine.charged(second) == MS


def test_an_idle_gpu_has_no_timer(machine: Machine) -> None:
    who = machine.tenant(500)
    machine.say(who, WANT)
    machine.say(who, NEAR | DRAINED)
    assert core.lease_gpu_due(ctypes.byref(machine.gpu)) == NEVER


def test_no_tenant_starves_among_many(machine: Machine) -> None:
    everyone = [machine.tenant(15) for _ in range(native.TENANTS)]
    for who in everyone:
        machine.say(who, WANT)
    turns = dict.fromkeys(everyone, 0)
    for _ in range(4 * len(everyone)):
        holder = machine.gpu.holder
        turns[holder] += 1
        machine.now += 10 * MS
        machine.say(holder, ACTIVE | NEAR | DRAINED)
    assert set(turns.values()) <= {3, 4, 5}


def late(machine: Machine, *others: int) -> int:
    """A tenant whose work overran its deadline, so that it and another tenant use the GPU at the same time."""
    who = machine.tenant(10)
    machine.say(who, WANT)
    for other in others:
        machine.say(other, WANT)
    while not machine.holds(who):
        pass_on(machine, 20 * MS)
    while machine.holds(who):
        machine.advance(machine.now + MS)
    machine.say(who, ACTIVE)
    while not any(machine.holds(other) for other in others):
        machine.advance(machine.now + MS)
    return who


def pass_on(machine: Machine, length: int, *speaking: int) -> None:
    """Advance time in turns of 20 ms that end on time; a tenant whose work overruns reports it."""
    end = machine.now + length
    while machine.now < end:
        machine.advance(machine.now + 20 * MS)
        for who in speaking:
            machine.say(who, ACTIVE)
        machine.say(machine.gpu.holder, ACTIVE | NEAR | DRAINED)


def test_overrunning_work_is_charged_during_other_tenants_turns(machine: Machine) -> None:
    others = machine.tenant(450), machine.tenant(450)
    who = late(machine, *others)
    before = [machine.charged(each) for each in (who, *others)]
    pass_on(machine, 2 * S, who)
    machine.say(who, WANT)
    mine, *theirs = (machine.charged(each) - was for each, was in zip((who, *others), before, strict=True))
    # The GPU divides time slices by process, and so is the time charged.
    assert mine == pytest.approx(S, rel=0.02)
    assert sum(theirs) == pytest.approx(S, rel=0.02)
    assert min(theirs) > 400 * MS


def test_overrunning_work_of_several_tenants_is_charged_to_each(machine: Machine) -> None:
    other = machine.tenant(100)
    first = late(machine, other)
    second = late(machine, other)
    machine.say(first, ACTIVE)
    before = [machine.charged(each) for each in (first, second, other)]
    pass_on(machine, 3 * S, first, second)
    after = [machine.charged(each) for each in (first, second, other)]
    for was, now in zip(before, after, strict=True):
        assert now - was == pytest.approx(S, rel=0.05)


def test_work_that_ends_later_than_predicted_is_charged_until_it_ends(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(second, WANT)
    machine.advance(machine.now + 20 * MS)
    machine.say(first, ACTIVE | NEAR, stamp=machine.now + 100 * US)
    assert machine.holds(second)
    machine.now += 3 * MS
    machine.say(first, ACTIVE)
    machine.now += 10 * MS
    machine.say(first, ACTIVE | NEAR | DRAINED)
    # The other got a time slice in between, and from there on they shared the GPU.
    assert machine.charged(first) == pytest.approx(20 * MS + 1 * MS + 5 * MS, abs=MS // 2)
    assert machine.charged(second) == pytest.approx(2 * MS + 5 * MS, abs=MS // 2)


def test_a_time_slice_of_the_successor_is_charged_to_the_successor(machine: Machine) -> None:
    first, second = machine.tenant(500), machine.tenant(500)
    machine.say(first, WANT)
    machine.say(second, WANT)
    machine.advance(machine.now + 20 * MS)
    machine.say(first, ACTIVE | NEAR, stamp=machine.now + 100 * US)
    machine.now += 2100 * US
    machine.say(first, ACTIVE | NEAR | DRAINED)
    assert machine.charged(first) == 20 * MS + 100 * US
    assert machine.charged(second) == 2 * MS


def test_a_stopped_process_is_not_charged_until_it_continues(machine: Machine) -> None:
    other = machine.tenant(500)
    who = late(machine, other)
    before = machine.charged(who)
    pass_on(machine, 60 * S)
    assert machine.charged(who) - before < S
    machine.say(who, WANT)
    assert machine.charged(who) - before < S


@pytest.mark.parametrize("looks", [1, 3, 100])
def test_on_a_starved_machine_overrunning_work_is_charged_however_seldom_the_arbiter_looks(
    machine: Machine, looks: int
) -> None:
    """Neither the tenant's messages nor the arbiter's timers come on time; the GPU works all the same."""
    other = machine.tenant(500)
    who = late(machine, other)
    machine.say(other, NEAR | DRAINED)
    machine.say(who, ACTIVE)
    before = machine.charged(who)
    for _ in range(looks):
        machine.now += 10 * S // looks
        machine.charged(who)
    # It is believed to run on for half a second after its last message.
    assert machine.charged(who) - before == pytest.approx(500 * MS, rel=0.02)
    machine.say(who, ACTIVE)
    assert machine.charged(who) - before == pytest.approx(500 * MS, rel=0.02)


def test_a_late_tenant_that_gets_a_turn_is_charged_once(machine: Machine) -> None:
    other = machine.tenant(500)
    who = late(machine, other)
    start, before = machine.now, machine.charged(who) + machine.charged(other)
    for _ in range(100):
        machine.advance(machine.now + 20 * MS)
        machine.say(who, ACTIVE)
        if machine.gpu.holder == other:
            machine.say(other, ACTIVE | NEAR | DRAINED)
    assert machine.charged(who) + machine.charged(other) - before == pytest.approx(machine.now - start, rel=0.01)


def test_a_late_tenant_that_dies_is_no_longer_charged(machine: Machine) -> None:
    other = machine.tenant(500)
    who = late(machine, other)
    machine.die(who)
    before = machine.charged(who)
    pass_on(machine, S)
    assert machine.charged(who) == before
