"""How a process paces its launches within its lease, on a virtual clock."""

import ctypes

import pytest

from testing.lease import native
from testing.lease.clock import MS, US, S
from testing.lease.native import CONTENDED, FULL, GO, OUTSIDE

core = native.core()
FUNCTION = 0x7F0012345678


class Process:
    """The state of a process on one GPU."""

    def __init__(self) -> None:
        self.estimates = native.Estimates()
        self.pace = native.Pace()
        self.now = 10 * S
        self.until = 20 * S
        self.when = 0

    def learn(self, key: int, duration: int, count: int = 1, *, exact: bool = True) -> None:
        core.pace_learn(ctypes.byref(self.estimates), key, count, float(duration), exact)

    def knows(self, key: int) -> bool:
        return bool(core.pace_known(ctypes.byref(self.estimates), key))

    def estimate(self, key: int, size: int = 0) -> int:
        return core.pace_estimate(ctypes.byref(self.estimates), key, size)

    def launch(self, key: int) -> None:
        estimate, unknown = self.estimate(key), not self.knows(key)
        if not self.pace.pieces:
            self.pace.since, self.pace.oldest = self.now, estimate
        self.pace.pieces += 1
        self.pace.unknown += unknown
        self.pace.estimate += estimate
        self.pace.latest = self.now

    def ask(self, key: int, flags: int = CONTENDED) -> int:
        when = ctypes.c_int64()
        arguments = (self.now, self.until, flags, self.estimate(key), ctypes.byref(when))
        verdict = core.pace_gate(ctypes.byref(self.pace), *arguments)
        self.when = when.value
        return verdict

    def ask_slot(self, key: int, start_us: int, length_us: int) -> int:
        when = ctypes.c_int64()
        arguments = (self.now, start_us, length_us, self.estimate(key), ctypes.byref(when))
        verdict = core.pace_slot(ctypes.byref(self.pace), *arguments)
        self.when = when.value
        return verdict


@pytest.fixture
def process() -> Process:
    return Process()


def key(what: int = FUNCTION, size: int = 1) -> int:
    return core.pace_key(what, size)


def test_no_launch_is_queued_behind_work_of_unknown_length(process: Process) -> None:
    known = key(FUNCTION + 64)
    process.learn(known, 10 * US)
    process.launch(known)
    assert process.ask(key()) == GO, "it may start behind known work"
    process.launch(key())
    for each in (key(), known):
        assert process.ask(each) == FULL
        assert process.now < process.when < process.now + MS, "the end of short work is noticed soon"


def test_work_of_known_length_is_queued_up_to_the_bound(process: Process) -> None:
    process.learn(key(), MS)
    launched = 0
    while process.ask(key()) == GO:
        process.launch(key())
        launched += 1
    assert launched == 4


def test_another_grid_size_of_the_same_function_is_measured_separately(process: Process) -> None:
    process.learn(key(size=256), 10 * US)
    assert process.knows(key(size=300))
    assert not process.knows(key(size=1 << 20))
    assert process.estimate(key(size=300)) == 10 * US


def test_another_graph_or_function_is_measured_separately(process: Process) -> None:
    process.learn(key(), 10 * US)
    assert not process.knows(key(FUNCTION + 16))


def test_work_that_suddenly_takes_much_longer_counts_as_unknown_until_measured_again(process: Process) -> None:
    process.learn(key(), 10 * US)
    process.learn(key(), 300 * MS)
    assert not process.knows(key())
    for _ in range(4):
        process.learn(key(), 300 * MS)
    assert process.knows(key())
    assert process.estimate(key()) == 300 * MS


def test_a_time_slice_of_another_context_does_not_make_the_length_unknown(process: Process) -> None:
    process.learn(key(), 100 * US)
    process.learn(key(), 2 * MS)
    assert process.knows(key())
    assert process.estimate(key()) == 100 * US


def test_a_measurement_that_may_include_other_work_does_not_replace_an_exact_one(process: Process) -> None:
    process.learn(key(), 20 * MS)
    for _ in range(10):
        process.learn(key(), 22 * MS, exact=False)
    assert process.estimate(key()) == 20 * MS
    for _ in range(100):
        process.learn(key(), 22 * MS, exact=False)
    assert process.estimate(key()) == pytest.approx(22 * MS, rel=0.01), "there is no better measurement any more"


def test_no_launch_is_queued_behind_work_that_is_overdue(process: Process) -> None:
    process.learn(key(), MS)
    process.launch(key())
    process.now += MS
    assert process.ask(key()) == GO
    process.now += 3 * MS
    assert process.ask(key()) == FULL
    assert core.pace_uncertain(ctypes.byref(process.pace), process.now)


def test_endless_work_lets_one_launch_through_each_second(process: Process) -> None:
    process.launch(key())
    let_in = 0
    for _ in range(35):
        process.now += S // 10
        if process.ask(key()) == GO:
            let_in += 1
            process.launch(key())
    assert let_in == 3


def test_the_lengths_of_many_functions_are_remembered(process: Process) -> None:
    kinds = [key(FUNCTION + 16 * index, 1 << index % 20) for index in range(500)]
    for each in kinds:
        process.learn(each, MS)
    assert sum(process.knows(each) for each in kinds) > 490


def test_a_copy_is_estimated_by_its_bytes(process: Process) -> None:
    assert process.estimate(key(), 1 << 30) == (1 << 30) // 10
    process.learn(key(), 100 * MS, count=1 << 30)
    assert process.estimate(key(), 1 << 29) == pytest.approx(50 * MS, rel=0.01)


def test_no_launch_starts_after_the_end_of_the_lease(process: Process) -> None:
    process.until = process.now + MS
    process.learn(key(), 2 * MS)
    assert process.ask(key()) == GO
    process.launch(key())
    assert process.ask(key()) == OUTSIDE


def test_without_an_arbiter_an_overrun_is_deducted_from_later_time_slots(process: Process) -> None:
    """A time slot of 30 ms in each 100 ms; the first kernel took 300 ms and was expected to take one."""
    process.now = 10 * S
    assert process.ask_slot(key(), 0, 30_000) == GO
    process.pace.excess = 299 * MS
    process.learn(key(), 10 * US)
    frames = 0
    while process.ask_slot(key(), 0, 30_000) != GO:
        process.now += 100 * MS
        frames += 1
        assert frames < 20
    assert frames == 10
