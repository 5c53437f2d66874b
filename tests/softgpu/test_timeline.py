"""The schedule of a modeled GPU, on the test's own clock; this is the C function that every client runs."""

import ctypes
import mmap
import struct
from collections.abc import Iterator

import pytest

from milligpu.softgpu.activity import PAGE_BYTES, native

MS = 1_000_000
FIRST_SLOT, SLOT_BYTES, JOB_BYTES, JOBS = 192, 3144, 24, 128


class ModeledGpu:
    """An activity page and its clock."""

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
        """When a job ended, in nanoseconds since the GPU started."""
        assert self.served(slot) >= job
        return self._word(FIRST_SLOT + slot * SLOT_BYTES + 72 + job % JOBS * JOB_BYTES + 16) - 1000 * MS

    def busy(self, slot: int) -> int:
        return native().activity_busy(self.page, slot, self.now)

    def late(self) -> int:
        return self._word(32)

    def _word(self, offset: int) -> int:
        return struct.unpack_from("<Q", self.memory, offset)[0]


@pytest.fixture
def gpu() -> Iterator[ModeledGpu]:
    yield ModeledGpu()  # noqa: PT022 - the memory is freed with the last reference


def test_jobs_of_one_context_run_without_gaps(gpu: ModeledGpu) -> None:
    slot = gpu.open()
    jobs = [gpu.submit(slot, 3 * MS) for _ in range(4)]
    gpu.pass_time(50 * MS)
    assert [gpu.end(slot, job) for job in jobs] == [3 * MS, 6 * MS, 9 * MS, 12 * MS]
    assert gpu.busy(slot) == 12 * MS


def test_two_contexts_alternate_every_two_milliseconds(gpu: ModeledGpu) -> None:
    a, b = gpu.open(), gpu.open()
    jobs = [(gpu.submit(a, MS), gpu.submit(b, MS)) for _ in range(6)]
    gpu.pass_time(50 * MS)
    assert [gpu.end(a, job) // MS for job, _ in jobs] == [1, 2, 5, 6, 9, 10]
    assert [gpu.end(b, job) // MS for _, job in jobs] == [3, 4, 7, 8, 11, 12]


def test_a_long_kernel_is_preempted_at_each_time_slice(gpu: ModeledGpu) -> None:
    long, short = gpu.open(), gpu.open()
    gpu.submit(long, 20 * MS)
    gpu.pass_time(MS)
    jobs = [gpu.submit(short, MS // 10) for _ in range(3)]
    gpu.pass_time(50 * MS)
    assert gpu.end(short, jobs[-1]) == 2 * MS + 3 * MS // 10
    assert gpu.end(long, 1) == 20 * MS + 3 * MS // 10


def test_a_context_without_work_gives_up_the_rest_of_its_time_slice(gpu: ModeledGpu) -> None:
    a, b = gpu.open(), gpu.open()
    gpu.submit(a, MS // 2)
    gpu.submit(b, MS)
    gpu.pass_time(10 * MS)
    assert gpu.end(b, 1) == MS + MS // 2


def test_the_schedule_does_not_depend_on_how_often_it_advances() -> None:
    ends: list[list[int]] = []
    for step in (50 * MS, MS // 7):
        gpu = ModeledGpu()
        slots = [gpu.open() for _ in range(3)]
        jobs = [(slot, gpu.submit(slot, (at * 7 + slot) % 5 * MS // 3 + 1)) for at in range(9) for slot in slots]
        while gpu.now < 1050 * MS:
            gpu.pass_time(step)
        ends.append([gpu.end(slot, job) for slot, job in jobs])
    assert ends[0] == ends[1]


def test_work_on_an_idle_gpu_starts_when_it_was_ready(gpu: ModeledGpu) -> None:
    slot = gpu.open()
    gpu.pass_time(5 * MS)
    gpu.submit(slot, 2 * MS, ready=gpu.now - MS)
    gpu.pass_time(10 * MS)
    assert gpu.end(slot, 1) == 6 * MS
    assert gpu.late() == 0


def test_a_launch_that_the_cpu_finished_late_is_counted(gpu: ModeledGpu) -> None:
    slot = gpu.open()
    gpu.pass_time(10 * MS)
    gpu.submit(slot, MS, ready=gpu.now - 5 * MS)
    assert (gpu.end(slot, 1), gpu.late()) == (6 * MS, 1)


def test_a_time_slice_that_passed_while_the_cpu_worked_is_counted(gpu: ModeledGpu) -> None:
    a, b = gpu.open(), gpu.open()
    gpu.submit(a, 100 * MS)
    ready = gpu.now + MS
    gpu.pass_time(7 * MS)
    gpu.submit(b, MS, ready=ready)
    assert gpu.late() == 1
    gpu.pass_time(10 * MS)
    assert gpu.end(b, 1) == 9 * MS


def test_a_prediction_holds_unless_more_arrives(gpu: ModeledGpu) -> None:
    slots = [gpu.open() for _ in range(3)]
    jobs = [(slot, gpu.submit(slot, (at + slot) % 3 * MS + MS)) for at in range(5) for slot in slots]
    gpu.pass_time(3 * MS)
    far = gpu.now + 1000 * MS
    predicted = [native().timeline_predict(gpu.page, slot, job, far) - 1000 * MS for slot, job in jobs]
    gpu.pass_time(100 * MS)
    assert [gpu.end(slot, job) for slot, job in jobs] == predicted


def test_a_full_queue_accepts_work_after_its_owner_reads_the_ends(gpu: ModeledGpu) -> None:
    slot = gpu.open()
    assert [gpu.submit(slot, 1) for _ in range(JOBS)] == list(range(1, JOBS + 1))
    assert gpu.submit(slot, 1) == 0


def test_closing_a_context_drops_its_queued_work_and_keeps_its_busy_time(gpu: ModeledGpu) -> None:
    a, b = gpu.open(), gpu.open()
    gpu.submit(a, 100 * MS)
    gpu.submit(b, 4 * MS)
    gpu.pass_time(3 * MS)
    native().activity_close(gpu.page, a, gpu.now)
    gpu.pass_time(10 * MS)
    assert gpu.end(b, 1) == 6 * MS
    assert struct.unpack_from("<Q", gpu.memory, 24)[0] == 2 * MS
    assert gpu.open() == a
    assert gpu.busy(a) == 0


def test_copies_take_turns_on_the_copy_engine(gpu: ModeledGpu) -> None:
    slot = gpu.open()
    ends = [native().timeline_copy(gpu.page, slot, gpu.now, 2 * MS) for _ in range(2)]
    assert [end - gpu.now for end in ends] == [2 * MS, 4 * MS]
