"""The schedule of a modelled card, on a clock of the test's own: the C function that every client runs."""

import ctypes
import mmap
import struct
from collections.abc import Iterator

import pytest

from milligpu.softgpu.activity import PAGE_BYTES, native

MS = 1_000_000
FIRST_SLOT, SLOT_BYTES, JOB_BYTES, JOBS = 192, 3144, 24, 128


class Card:
    """A page and its clock."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, PAGE_BYTES)
        self.page = ctypes.byref(ctypes.c_char.from_buffer(self.memory))
        native().activity_start(self.page, 1.0)
        self.now = 1000 * MS

    def open(self) -> int:
        return native().activity_open(self.page, 1)

    def submit(self, slot: int, duration: int, ready: int | None = None) -> int:
        return native().timeline_submit(self.page, slot, self.now if ready is None else ready, duration, self.now)

    def pass_time(self, duration: int) -> None:
        self.now += duration
        native().timeline_advance(self.page, self.now)

    def served(self, slot: int) -> int:
        return self._word(FIRST_SLOT + slot * SLOT_BYTES + 56)

    def end(self, slot: int, job: int) -> int:
        """When a job ended, counted from the card's first moment."""
        assert self.served(slot) >= job
        return self._word(FIRST_SLOT + slot * SLOT_BYTES + 72 + job % JOBS * JOB_BYTES + 16) - 1000 * MS

    def busy(self, slot: int) -> int:
        return native().activity_busy(self.page, slot, self.now)

    def late(self) -> int:
        return self._word(32)

    def _word(self, offset: int) -> int:
        return struct.unpack_from("<Q", self.memory, offset)[0]


@pytest.fixture
def card() -> Iterator[Card]:
    yield Card()  # noqa: PT022 - its memory goes with the last reference


def test_jobs_of_one_context_follow_each_other_without_a_gap(card: Card) -> None:
    slot = card.open()
    jobs = [card.submit(slot, 3 * MS) for _ in range(4)]
    card.pass_time(50 * MS)
    assert [card.end(slot, job) for job in jobs] == [3 * MS, 6 * MS, 9 * MS, 12 * MS]
    assert card.busy(slot) == 12 * MS


def test_two_contexts_alternate_every_two_milliseconds(card: Card) -> None:
    a, b = card.open(), card.open()
    jobs = [(card.submit(a, MS), card.submit(b, MS)) for _ in range(6)]
    card.pass_time(50 * MS)
    assert [card.end(a, job) // MS for job, _ in jobs] == [1, 2, 5, 6, 9, 10]
    assert [card.end(b, job) // MS for _, job in jobs] == [3, 4, 7, 8, 11, 12]


def test_a_long_kernel_is_cut_at_slices(card: Card) -> None:
    long, short = card.open(), card.open()
    card.submit(long, 20 * MS)
    card.pass_time(MS)
    jobs = [card.submit(short, MS // 10) for _ in range(3)]
    card.pass_time(50 * MS)
    assert card.end(short, jobs[-1]) == 2 * MS + 3 * MS // 10
    assert card.end(long, 1) == 20 * MS + 3 * MS // 10


def test_a_context_that_runs_dry_gives_the_rest_of_its_slice_away(card: Card) -> None:
    a, b = card.open(), card.open()
    card.submit(a, MS // 2)
    card.submit(b, MS)
    card.pass_time(10 * MS)
    assert card.end(b, 1) == MS + MS // 2


def test_the_schedule_does_not_depend_on_how_often_it_is_looked_at() -> None:
    ends: list[list[int]] = []
    for step in (50 * MS, MS // 7):
        card = Card()
        slots = [card.open() for _ in range(3)]
        jobs = [(slot, card.submit(slot, (at * 7 + slot) % 5 * MS // 3 + 1)) for at in range(9) for slot in slots]
        while card.now < 1050 * MS:
            card.pass_time(step)
        ends.append([card.end(slot, job) for slot, job in jobs])
    assert ends[0] == ends[1]


def test_work_on_an_idle_card_is_dated_back_to_when_it_could_begin(card: Card) -> None:
    slot = card.open()
    card.pass_time(5 * MS)
    card.submit(slot, 2 * MS, ready=card.now - MS)
    card.pass_time(10 * MS)
    assert card.end(slot, 1) == 6 * MS
    assert card.late() == 0


def test_work_that_the_cpu_finished_after_the_card_should_have_is_counted(card: Card) -> None:
    slot = card.open()
    card.pass_time(10 * MS)
    card.submit(slot, MS, ready=card.now - 5 * MS)
    assert (card.end(slot, 1), card.late()) == (6 * MS, 1)


def test_a_turn_that_passed_while_the_cpu_was_at_it_is_counted(card: Card) -> None:
    a, b = card.open(), card.open()
    card.submit(a, 100 * MS)
    ready = card.now + MS
    card.pass_time(7 * MS)
    card.submit(b, MS, ready=ready)
    assert card.late() == 1
    card.pass_time(10 * MS)
    assert card.end(b, 1) == 9 * MS


def test_a_prediction_holds_unless_more_arrives(card: Card) -> None:
    slots = [card.open() for _ in range(3)]
    jobs = [(slot, card.submit(slot, (at + slot) % 3 * MS + MS)) for at in range(5) for slot in slots]
    card.pass_time(3 * MS)
    far = card.now + 1000 * MS
    predicted = [native().timeline_predict(card.page, slot, job, far) - 1000 * MS for slot, job in jobs]
    card.pass_time(100 * MS)
    assert [card.end(slot, job) for slot, job in jobs] == predicted


def test_a_full_queue_takes_no_more_until_its_owner_saw_the_ends(card: Card) -> None:
    slot = card.open()
    assert [card.submit(slot, 1) for _ in range(JOBS)] == list(range(1, JOBS + 1))
    assert card.submit(slot, 1) == 0


def test_what_a_closed_context_had_to_do_is_gone_and_its_time_is_kept(card: Card) -> None:
    a, b = card.open(), card.open()
    card.submit(a, 100 * MS)
    card.submit(b, 4 * MS)
    card.pass_time(3 * MS)
    native().activity_close(card.page, a, card.now)
    card.pass_time(10 * MS)
    assert card.end(b, 1) == 6 * MS
    assert struct.unpack_from("<Q", card.memory, 24)[0] == 2 * MS
    assert card.open() == a
    assert card.busy(a) == 0


def test_copies_take_turns_on_the_copy_engine(card: Card) -> None:
    slot = card.open()
    ends = [native().timeline_copy(card.page, slot, card.now, 2 * MS) for _ in range(2)]
    assert [end - card.now for end in ends] == [2 * MS, 4 * MS]
